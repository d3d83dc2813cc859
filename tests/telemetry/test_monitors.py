"""What monitors know reaches whoever publishes."""

import keras
import pytest

from keras_tfopt import callbacks
from keras_tfopt.memory import DriverReading
from keras_tfopt.memory import HostMemory
from keras_tfopt.memory import SwapManager
from keras_tfopt.memory.fragmentation import Fragmentation
from keras_tfopt.memory.leak_slope import LeakSlope
from keras_tfopt.memory.readings import DeviceReading
from keras_tfopt.memory.readings import MemoryReading
from keras_tfopt.telemetry.catalogue import metric_named
from tests import builders


def knowing_watchdog():
    watchdog = callbacks.MemoryWatchdog()
    driver = DriverReading(used_bytes=7)
    device = DeviceReading("GPU:0", driver=driver)
    reading = MemoryReading(0.0, 0, 0.0, (device,), HostMemory())
    watchdog._readings.append(reading)
    return watchdog


def swapping_watchdog():
    swap = SwapManager(budget_bytes=1)
    for direction, size in (("out", 8), ("in", 5)):
        swap.counters.note(direction, size, 0.1)
    swap.counters.hits, swap.counters.misses = 3, 1
    return callbacks.MemoryWatchdog(swap_manager=swap)


def knowing_monitor():
    monitor = callbacks.FragmentationMonitor()
    monitor._device = "GPU:0"
    monitor.last_reading = Fragmentation(100, 60, 60, 30)
    return monitor


def knowing_detector():
    detector = callbacks.LeakDetector()
    detector.slopes = {
        "host": LeakSlope(5.0, True),
        "GPU:0": LeakSlope(9.0, False),
    }
    return detector


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (knowing_watchdog, {("memory_device_used_bytes", "GPU:0"): 7}),
        (knowing_monitor, {("memory_fragmentation_ratio", "GPU:0"): 0.25}),
        (
            swapping_watchdog,
            {
                ("memory_swaps_total", "out"): 1,
                ("memory_swaps_total", "in"): 1,
                ("memory_swapped_bytes_total", "out"): 8,
                ("memory_swapped_bytes_total", "in"): 5,
                ("offload_hit_ratio", None): 0.75,
            },
        ),
        (
            knowing_detector,
            {
                ("memory_leak_bytes_per_epoch", "host"): 5.0,
                ("memory_leak_bytes_per_epoch", "GPU:0"): None,
            },
        ),
    ],
)
def test_readings_are_of_the_catalogue(make, expected):
    found = {}
    for reading in make().metric_readings():
        assert set(metric_named(reading.name).labels) == set(reading.labels)
        (label,) = reading.labels.values() or (None,)
        found[reading.name, label] = reading.value
    assert found == pytest.approx(expected)


def test_monitors_without_readings_disturb_nobody(caplog, tmp_path):
    logger = callbacks.JSONLinesLogger(tmp_path / "log")
    model = builders.stack(keras.Model, [])
    x, y = builders.regression_data()
    monitors = [
        callbacks.MemoryWatchdog(interval_seconds=0.05),
        callbacks.FragmentationMonitor(),
        callbacks.LeakDetector(),
    ]
    model.fit(x, y, verbose=0, callbacks=[*monitors, logger])
    assert "gives no values" not in caplog.text
    assert "host_memory_rss_bytes" in (tmp_path / "log").read_text()
