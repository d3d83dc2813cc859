"""What devices say about their memory, and moving variables in it."""

from keras_tfopt.memory.allocator import AllocatorStats
from keras_tfopt.memory.allocator import read_allocator_stats
from keras_tfopt.memory.allocator import reset_allocator_peak
from keras_tfopt.memory.compaction import Compaction
from keras_tfopt.memory.compaction import compact
from keras_tfopt.memory.eviction import Eviction
from keras_tfopt.memory.fragmentation import Fragmentation
from keras_tfopt.memory.fragmentation import read_fragmentation
from keras_tfopt.memory.profiler_window import AllocationEvent
from keras_tfopt.memory.profiler_window import ProfilerWindow
from keras_tfopt.memory.swap import SwapManager
from keras_tfopt.memory.swap_counters import SwapCounters

__all__ = [
    "AllocationEvent",
    "AllocatorStats",
    "Compaction",
    "Eviction",
    "Fragmentation",
    "ProfilerWindow",
    "SwapCounters",
    "SwapManager",
    "compact",
    "read_allocator_stats",
    "read_fragmentation",
    "reset_allocator_peak",
]
