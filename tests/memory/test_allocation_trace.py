"""Events of an allocator become lifetimes, and a map."""

import math

from keras_tfopt.memory.address_map import map_entries
from keras_tfopt.memory.allocation_trace import timeline_of
from keras_tfopt.memory.memory_trace import MemoryEntry
from keras_tfopt.memory.profiler_window import AllocationEvent
from keras_tfopt.memory.profiler_window import allocator_name

MIB = 2**20


def event(seconds, address, size, in_use, is_allocation=True, operation=""):
    return AllocationEvent(
        seconds, is_allocation, "bfc", address, size, size, in_use, 0, 0, 0.0,
        operation,
    )  # fmt: skip


def test_lifetimes():
    found = timeline_of(
        [
            event(0.0, 10, 4, 104, operation="a"),
            # Older than the window.
            event(1.0, 90, 50, 54, is_allocation=False),
            event(2.0, 20, 6, 60, operation="b"),
            event(3.0, 10, 4, 56, is_allocation=False),
            # The same address again.
            event(4.0, 10, 2, 58, operation="c"),
        ]
    )
    assert [(a.operation, a.begin, a.end) for a in found.allocations] == [
        ("a", 0.0, 3.0),
        ("b", 2.0, math.inf),
        ("c", 4.0, math.inf),
    ]
    assert found.peak == 0
    assert [a.operation for a in found.alive_at_peak()] == ["a"]


def test_what_is_freed_at_the_peak_is_not_alive():
    found = timeline_of(
        [
            event(0.0, 10, 4, 4, operation="a"),
            event(1.0, 10, 4, 0, is_allocation=False),
            event(1.0, 10, 9, 9, operation="b"),
        ]
    )
    assert [a.operation for a in found.alive_at_peak()] == ["b"]


def test_regions_stand_next_to_each_other():
    addresses = [7 * MIB, 5 * MIB, 9000 * MIB, 9001 * MIB, None]
    entries = [
        MemoryEntry("other", "?", str(index), MIB, address=address)
        for index, address in enumerate(addresses)
    ]
    found = map_entries(entries)
    assert [entry.operation for entry in found.entries] == ["1", "0", "2", "3"]
    assert [offset / MIB for offset in found.offsets] == [0, 2, 3, 4]
    assert [border / MIB for border in found.borders] == [3, 5]
    assert map_entries([]).borders == ()


def test_names_of_allocators():
    assert allocator_name("GPU:1") == "GPU_1_bfc"
    assert allocator_name("/job:a/task:0/device:GPU:0") == "GPU_0_bfc"
    assert allocator_name("CPU:0") == "bfc_cpu_allocator_for_gpu"
