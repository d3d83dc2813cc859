"""A smaller micro-batch is asked for when, and only when, it may help."""

import dataclasses
import gc

import pytest

from keras_tfopt import ExecutionPlan
from keras_tfopt.memory import PeakWindow
from keras_tfopt.memory.readings import DeviceReading
from keras_tfopt.training.memory_pressure import MemoryPressure
from tests.callbacks.test_memory_watchdog import counting as counting

# So much that what tests hold is nothing.
LIMIT = 2**50
WHOLE = ExecutionPlan()


@pytest.fixture
def pressure(counting):
    gc.collect()
    return MemoryPressure(PeakWindow("CPU:0"), LIMIT, 0.85, 3)


def reading(share, window=0):
    return DeviceReading("CPU:0", 0, int(share * LIMIT), LIMIT, None, window)


def size_after(pressure, plan=WHOLE, rows=16, key="x"):
    proposal = pressure.review(plan, rows, key, 1)
    return proposal and proposal[0].microbatch_size


def test_halves_after_a_breach_and_only_once(pressure):
    assert size_after(pressure) is None
    pressure.report(reading(0.9))
    assert size_after(pressure) == 8
    assert size_after(pressure) is None


def test_below_the_threshold_all_is_well(pressure):
    pressure.report(reading(0.85))
    assert size_after(pressure) is None
    pressure.report(DeviceReading("CPU:0"))
    assert size_after(pressure) is None


def test_a_reading_of_steps_under_the_plan_before_does_not_count(pressure):
    pressure.report(reading(0.9))
    plan, reason = pressure.review(WHOLE, 16, "x", 1)
    assert reason == "CPU:0 was 90% full with 16 of 16 rows at a time"
    pressure.report(reading(0.9))
    assert size_after(pressure, plan) is None
    pressure.report(reading(0.9, window=1))
    assert size_after(pressure, plan) == 4


def test_ends_at_the_smallest_and_says_so_once(pressure, caplog):
    plan = ExecutionPlan(microbatch_size=4)
    pressure.report(reading(0.9))
    assert size_after(pressure, plan) == 3
    for _ in range(2):
        pressure.report(reading(0.9, window=1))
        assert size_after(pressure, ExecutionPlan(microbatch_size=3)) is None
    assert len(caplog.messages) == 1
    assert "of 3 rows must not be smaller" in caplog.text


def test_a_short_batch_does_not_count(pressure):
    assert size_after(pressure, rows=16) is None
    pressure.report(reading(0.9))
    assert size_after(pressure, rows=2) == 8
    pressure.report(reading(0.9, window=1))
    assert size_after(pressure, rows=2, key="other shapes") is None


def test_readings_of_other_devices_do_not_count(pressure):
    pressure.report(dataclasses.replace(reading(0.9), device="CPU:1"))
    assert size_after(pressure) is None


def test_other_settings_stay(pressure):
    plan = ExecutionPlan(accumulation_steps=2, jit_compile=True, gather_steps=3)
    pressure.report(reading(0.9))
    assert pressure.review(plan, 16, "x", 1)[0] == ExecutionPlan(
        microbatch_size=4, jit_compile=True, gather_steps=3
    )


def test_a_batch_without_rows(pressure):
    pressure.report(reading(0.9))
    assert size_after(pressure, rows=None) is None
