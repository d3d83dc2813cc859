import json
import logging

import pytest
import tensorflow as tf

from keras_tfopt import memory
from keras_tfopt.memory import allocator
from tests import subprocesses

MEGABYTE = 2**20

READ_AROUND_AN_ALLOCATION = """
import dataclasses, json
import tensorflow as tf
from keras_tfopt import memory

before = memory.reset_allocator_peak()
held = tf.zeros((2**20,)) + 1.0
held = held + 1.0
during = memory.read_allocator_stats()
after_reset = memory.reset_allocator_peak()
del held
after = memory.read_allocator_stats()
readings = [before, during, after_reset, after]
print(json.dumps([dataclasses.astuple(reading) for reading in readings]))
"""

READ_WITHOUT_STATISTICS = """
import logging
logging.basicConfig(level="INFO", format="%(levelname)s %(message)s")
from keras_tfopt import memory

print([memory.read_allocator_stats() for _ in range(2)])
print(memory.reset_allocator_peak())
"""


def test_bfc_allocator_counts_current_and_peak_bytes():
    printed = subprocesses.run_source(
        READ_AROUND_AN_ALLOCATION,
        TF_CPU_ALLOCATOR_USE_BFC="true",
        TF_CPU_BFC_MEM_LIMIT_IN_MB="300",
    )
    before, during, after_reset, after = json.loads(printed)

    current_before, peak_before = before
    assert peak_before == current_before
    # Four MB are held; while they were made, so were the ones before.
    assert during[0] - current_before == 4 * MEGABYTE
    assert during[1] - current_before == 8 * MEGABYTE
    assert after_reset == [during[0], during[0]]
    assert after == [current_before, during[0]]


def test_absence_is_logged_once_with_its_reason():
    process = subprocesses.run_python(
        "-c",
        READ_WITHOUT_STATISTICS,
        TF_CPU_ALLOCATOR_USE_BFC=None,
        TF_ENABLE_ONEDNN_OPTS="0",
    )

    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == ["[None,", "None]", "None"]
    lines = [
        line
        for line in process.stderr.splitlines()
        if "No allocator statistics" in line
    ]
    assert len(lines) == 1
    assert lines[0].startswith("INFO No allocator statistics for CPU:0: ")
    assert "stats not available" in lines[0]


@pytest.fixture
def no_statistics(monkeypatch):
    """Makes every device refuse, as a CPU without a counting allocator."""

    def refuse(device):
        raise ValueError(f"Allocator stats not available for '{device}'")

    for name in ("get_memory_info", "reset_memory_stats"):
        monkeypatch.setattr(tf.config.experimental, name, refuse)
    allocator._report_absence.cache_clear()


def test_absence_in_this_process(no_statistics, caplog):
    caplog.set_level(logging.INFO, logger="keras_tfopt")

    assert memory.read_allocator_stats("CPU:0") is None
    assert memory.read_allocator_stats("/device:CPU:0") is None
    assert memory.reset_allocator_peak("CPU:0") is None

    assert [record.getMessage() for record in caplog.records] == [
        "No allocator statistics for CPU:0: "
        "Allocator stats not available for 'CPU:0'",
        "No allocator statistics for /device:CPU:0: "
        "Allocator stats not available for '/device:CPU:0'",
    ]


@pytest.mark.parametrize("device", ["CPU:7", "GPU", "nonsense"])
@pytest.mark.parametrize(
    "function", [memory.read_allocator_stats, memory.reset_allocator_peak]
)
def test_unknown_device_is_refused(function, device):
    with pytest.raises(ValueError, match="argument `device`.*'/device:CPU:0'"):
        function(device)


@pytest.fixture
def counting():
    if memory.read_allocator_stats() is None:
        pytest.skip("the device counts nothing")


def use(megabytes):
    """Has so much more in use for a moment."""
    tensor = tf.zeros((megabytes * 2**18,)) + 1.0
    del tensor


def test_windows_keep_their_peaks_when_others_reset(counting):
    outer = memory.PeakWindow("CPU:0")
    before = outer.read()
    use(8)
    inner = memory.PeakWindow("/device:CPU:0")
    use(2)
    memory.reset_allocator_peak()
    use(1)
    assert outer.read().peak_bytes - before.current_bytes >= 8 * MEGABYTE
    assert inner.read().restarts == 0
    peak = inner.restart().peak_bytes - before.current_bytes
    assert 2 * MEGABYTE <= peak < 8 * MEGABYTE
    assert inner.read().restarts == 1
    assert inner.read().peak_bytes - before.current_bytes < MEGABYTE
    assert outer.read().peak_bytes - before.current_bytes >= 8 * MEGABYTE


def test_a_window_of_what_counts_nothing(no_statistics):
    window = memory.PeakWindow("CPU:0")
    assert window.read() is None
    assert window.restart() is None


def test_a_window_of_no_device_is_refused():
    with pytest.raises(ValueError, match="argument `device`"):
        memory.PeakWindow("CPU:7")


def test_stats_are_immutable():
    stats = memory.AllocatorStats(current_bytes=1, peak_bytes=2)
    with pytest.raises(AttributeError):
        stats.current_bytes = 3
