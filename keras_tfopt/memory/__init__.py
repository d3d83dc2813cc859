"""What devices and the host say about their memory, and moving variables."""

from keras_tfopt.memory.allocator import AllocatorStats as AllocatorStats
from keras_tfopt.memory.allocator import PeakReading as PeakReading
from keras_tfopt.memory.allocator import PeakWindow as PeakWindow
from keras_tfopt.memory.allocator import (
    read_allocator_stats as read_allocator_stats,
)
from keras_tfopt.memory.allocator import (
    reset_allocator_peak as reset_allocator_peak,
)
from keras_tfopt.memory.compaction import Compaction as Compaction
from keras_tfopt.memory.compaction import compact as compact
from keras_tfopt.memory.driver import Driver as Driver
from keras_tfopt.memory.driver_reading import DriverReading as DriverReading
from keras_tfopt.memory.eviction import Eviction as Eviction
from keras_tfopt.memory.fragmentation import Fragmentation as Fragmentation
from keras_tfopt.memory.fragmentation import (
    read_fragmentation as read_fragmentation,
)
from keras_tfopt.memory.host import HostMemory as HostMemory
from keras_tfopt.memory.host import read_host_memory as read_host_memory
from keras_tfopt.memory.profiler_window import (
    AllocationEvent as AllocationEvent,
)
from keras_tfopt.memory.profiler_window import ProfilerWindow as ProfilerWindow
from keras_tfopt.memory.settings import MemorySettings as MemorySettings
from keras_tfopt.memory.swap import SwapManager as SwapManager
from keras_tfopt.memory.swap_counters import SwapCounters as SwapCounters
