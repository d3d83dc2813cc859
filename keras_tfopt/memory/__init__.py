"""What devices say about their memory."""

from keras_tfopt.memory.allocator import AllocatorStats
from keras_tfopt.memory.allocator import read_allocator_stats
from keras_tfopt.memory.allocator import reset_allocator_peak

__all__ = [
    "AllocatorStats",
    "read_allocator_stats",
    "reset_allocator_peak",
]
