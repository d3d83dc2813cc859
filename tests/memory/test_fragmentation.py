"""What the allocator's figures say about its free memory."""

import json
import math

import pytest

from keras_tfopt.memory import Fragmentation
from keras_tfopt.memory.fragmentation import fragmentation_of
from keras_tfopt.memory.fragmentation import read_fragmentation
from keras_tfopt.memory.fragmentation import solve_region_bytes
from keras_tfopt.memory.profiler_window import AllocationEvent
from tests import subprocesses

MIB = 2**20

READ = """
import json
import tensorflow as tf
from keras_tfopt.memory import read_fragmentation

def figures():
    found = read_fragmentation()
    return [found.limit_bytes, found.in_use_bytes, found.largest_free_bytes]

tf.zeros(())
read = [figures()]
tf.zeros((90 * 2**20,), tf.uint8)
held = [tf.zeros((2**20,), tf.uint8) for _ in range(40)]
read.append(figures())
del held[::2]
read.append(figures())
print(json.dumps(read))
"""


def test_figures_of_a_real_allocator():
    printed = subprocesses.run_source(
        READ,
        TF_CPU_ALLOCATOR_USE_BFC="true",
        TF_CPU_BFC_MEM_LIMIT_IN_MB="100",
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    empty, full, holes = json.loads(printed.splitlines()[-1])
    assert {figures[0] for figures in (empty, full, holes)} == {100 * MIB}
    # Nothing is reserved yet but the first region of 2 MiB.
    assert empty[2] == pytest.approx(98 * MIB, rel=1e-3)
    assert full[1] - empty[1] == pytest.approx(40 * MIB, abs=2 * MIB)
    assert holes[1] - empty[1] == pytest.approx(20 * MIB, abs=2 * MIB)
    # What lies between the tensors does not make the largest block larger.
    assert holes[2] == pytest.approx(full[2], rel=0.05)


def states(region, largest, in_use, steps):
    """Events of an allocator that takes and frees blocks of given sizes."""
    found = []
    for taken, from_largest in [(0, False), *steps]:
        in_use += taken
        largest -= taken if from_largest else 0
        free = region - in_use
        ratio = (free - largest) / free if free else math.nan
        found.append(
            AllocationEvent(
                seconds=0.0, is_allocation=True, allocator="bfc", address=0,
                block_bytes=abs(taken), requested_bytes=abs(taken),
                in_use_bytes=in_use, available_bytes=1000 * MIB - in_use,
                peak_bytes=in_use,
                # As many digits as the allocator prints.
                fragmentation=float(f"{ratio:.6g}"),
            )
        )  # fmt: skip
    return found


@pytest.mark.parametrize("from_largest", [False, True])
@pytest.mark.parametrize("direction", [1, -1])
def test_the_reserved_size_is_solved_for(from_largest, direction):
    events = states(
        400 * MIB, 60 * MIB, 200 * MIB, [(direction * MIB, from_largest)]
    )
    assert solve_region_bytes(events) == pytest.approx(400 * MIB, rel=1e-3)
    found = fragmentation_of(events)
    # The rest of the limit is not reserved, and in one piece.
    assert found.largest_free_bytes == pytest.approx(600 * MIB, rel=1e-3)


def test_a_full_region_is_as_large_as_what_is_in_use():
    events = states(300 * MIB, MIB, 299 * MIB, [(MIB, True)])
    assert solve_region_bytes(events) == 300 * MIB
    assert fragmentation_of(events).largest_free_bytes == 700 * MIB


def test_without_a_solution_all_is_taken_for_reserved():
    events = states(400 * MIB, 200 * MIB, 200 * MIB, [])
    assert solve_region_bytes(events) is None
    assert fragmentation_of(events).largest_free_bytes == 800 * MIB


def test_ratios():
    found = Fragmentation(1000, 600, 800, 100)
    assert (found.free_bytes, found.ratio) == (400, 0.75)
    assert found.utilization == 0.8
    assert "fragmentation 75%" in str(found)
    assert Fragmentation(1000, 1000, 1000, 0).ratio == 0


def test_an_allocator_that_reports_nothing(caplog):
    with caplog.at_level("INFO", "keras_tfopt"):
        assert read_fragmentation("CPU:0") is None
