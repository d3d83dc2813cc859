"""The watchdog warns about memory, and shrinks micro-batches in time."""

import gc
import json
import logging
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from keras_tfopt.memory import PeakWindow
from keras_tfopt.memory import SwapManager
from keras_tfopt.memory import read_allocator_stats
from tests import models
from tests import subprocesses
from tests.equivalence import assert_same
from tests.equivalence import run

SOON = 0.005
PATIENCE = 30
ROWS, WIDTH = 4096, 512
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Wait(keras.callbacks.Callback):
    """Waits after each step for a reading of it."""

    def __init__(self, watchdog):
        super().__init__()
        self.watchdog = watchdog

    def get_state(self):
        return None

    def set_state(self, state):
        pass

    def on_train_batch_end(self, batch, logs=None):
        count = len(self.watchdog.readings) + 2
        wait_until(lambda: len(self.watchdog.readings) >= count)


def wait_until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(SOON)


def watching_threads():
    return [t for t in threading.enumerate() if t.name == "MemoryWatchdog"]


@pytest.fixture
def counting():
    """Holds a tensor that is large enough to be counted."""
    gc.collect()
    tensor = tf.zeros((2**20,))
    if read_allocator_stats() is None:
        pytest.skip("the device counts nothing")
    yield
    del tensor


def wide(cls, **settings):
    """A model whose activations are much larger than its weights."""
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(WIDTH, activation="tanh")(inputs)
    return models.compiled(
        cls(inputs, keras.layers.Dense(1)(hidden), **settings)
    )


def fit_wide(model, epochs=4, **kwargs):
    return model.fit(
        X, Y, batch_size=ROWS, epochs=epochs, verbose=0, shuffle=False, **kwargs
    )


def tight_limit(model):
    """Returns a limit that whole batches fill to nine tenths."""
    gc.collect()
    window = PeakWindow("CPU:0")
    fit_wide(model)
    return int(window.read().peak_bytes / 0.9)


def test_readings(counting):
    seen = []
    watchdog = callbacks.MemoryWatchdog(
        interval_seconds=SOON, limit_bytes=2**40, on_reading=seen.append
    )
    model = models.regressor(keras.Model)
    models.fit(model, callbacks=[watchdog, Wait(watchdog)])
    assert len(watchdog.readings) >= 2 * 2 * 3
    assert tuple(seen) == watchdog.readings
    steps = [reading.step for reading in watchdog.readings]
    assert steps == sorted(steps)
    assert {0, 3, 6} <= set(steps) <= set(range(7))
    for reading in watchdog.readings:
        (device,) = reading.devices
        assert device.device == "CPU:0"
        assert device.peak_bytes >= device.allocated_bytes > 0
        assert device.utilization_ratio == device.peak_bytes / 2**40
        assert device.driver is None
        assert reading.host.rss_bytes > 2**20
        assert reading.seconds > 0
    assert watchdog.breaches == ()
    assert watching_threads() == []


def test_nothing_is_swapped_in_while_memory_is_short(counting):
    swap = SwapManager(budget_bytes=2**30)
    paused = []
    watchdog = callbacks.MemoryWatchdog(
        interval_seconds=SOON,
        limit_bytes=1024,
        swap_manager=swap,
        on_reading=lambda reading: paused.append(swap.is_paused),
    )
    model = models.regressor(keras.Model)
    models.fit(model, epochs=1, callbacks=[watchdog, Wait(watchdog)])
    assert len(paused) > 2
    assert all(paused)
    # Nobody would let it go on.
    assert not swap.is_paused


def test_others_who_follow_the_peak_keep_theirs(counting):
    window = PeakWindow("CPU:0")
    watchdog = callbacks.MemoryWatchdog(interval_seconds=SOON)
    fit_wide(wide(keras.Model), callbacks=[watchdog, Wait(watchdog)])
    peaks = [reading.devices[0].peak_bytes for reading in watchdog.readings]
    assert min(peaks) < max(peaks)
    assert window.read().peak_bytes >= max(peaks)


def test_readings_are_bounded():
    watchdog = callbacks.MemoryWatchdog(interval_seconds=SOON, max_readings=3)
    model = models.regressor(keras.Model)
    for _ in range(2):
        models.fit(model, callbacks=[watchdog])
    assert len(watchdog.readings) == 3


def test_warns_once_per_breach_and_changes_nothing(counting, caplog):
    expected = models.stock_outcome()
    watchdog = callbacks.MemoryWatchdog(
        interval_seconds=SOON, limit_bytes=1, max_host_utilization=1e-9
    )
    outcome = run(
        models.regressor,
        lambda m: models.fit(m, callbacks=[watchdog, Wait(watchdog)]),
        keras.Model,
    )
    assert_same(outcome, expected)
    assert [breach.device for breach in watchdog.breaches] == ["CPU:0", "host"]
    assert watchdog.breaches[0].utilization_ratio > 1
    assert [r.levelno for r in caplog.records] == [logging.WARNING] * 2
    assert "Memory of CPU:0 is " in caplog.messages[0]
    assert "the kernel kills the process" in caplog.messages[1]
    assert watchdog.plan_events == ()


@pytest.mark.parametrize("cls", [keras.Model, AccumModel])
def test_shrinks_and_gives_the_same_result(counting, cls, caplog):
    expected = run(wide, fit_wide, keras.Model)
    watchdog = callbacks.MemoryWatchdog(
        interval_seconds=SOON,
        on_breach="shrink",
        limit_bytes=tight_limit(wide(cls)),
    )
    outcome = run(
        wide,
        lambda m: fit_wide(m, callbacks=[watchdog, Wait(watchdog)]),
        cls,
    )
    assert_same(outcome, expected)
    events = watchdog.plan_events
    assert [event.new.microbatch_size for event in events] == [
        ROWS // 2 ** (index + 1) for index in range(len(events))
    ]
    assert 1 <= len(events) <= 4
    assert events[0].reason.startswith("CPU:0 was 9")
    assert "full with 4096 of 4096 rows at a time" in events[0].reason
    assert watchdog.readings[-1].devices[0].utilization_ratio <= 0.85
    assert len(watchdog.breaches) == 1


def test_memory_between_steps_is_none_of_the_micro_batch(counting, caplog):
    watchdog = callbacks.MemoryWatchdog(
        interval_seconds=SOON, on_breach="shrink", limit_bytes=1
    )
    model = models.regressor(AccumModel)
    models.fit(model, callbacks=[watchdog, Wait(watchdog)])
    assert watchdog.plan_events == ()
    lines = [m for m in caplog.messages if "stays short of memory" in m]
    assert len(lines) == 1
    assert "which no micro-batch changes" in lines[0]


class OwnStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


def test_warns_for_any_model_and_shrinks_only_what_can_be_split(counting):
    watchdog = callbacks.MemoryWatchdog(interval_seconds=SOON, limit_bytes=1)
    model = models.regressor(OwnStep)
    models.fit(model, callbacks=[watchdog, Wait(watchdog)])
    assert watchdog.breaches
    shrinking = callbacks.MemoryWatchdog(on_breach="shrink", limit_bytes=2**40)
    iterations = int(model.optimizer.iterations)
    with pytest.raises(ValueError, match="own `train_step` cannot be split"):
        models.fit(model, callbacks=[shrinking])
    accumulating = models.regressor(
        keras.Model,
        {"optimizer": keras.optimizers.SGD(gradient_accumulation_steps=2)},
    )
    with pytest.raises(ValueError, match="accumulated twice"):
        models.fit(accumulating, callbacks=[shrinking])
    assert int(model.optimizer.iterations) == iterations
    assert watching_threads() == []


def test_a_model_whose_state_counts_micro_batches_is_refused_at_once(counting):
    inputs = keras.Input((4,))
    normed = keras.layers.SpectralNormalization(keras.layers.Dense(3))(inputs)
    model = models.compiled(keras.Model(inputs, keras.layers.Dense(1)(normed)))
    watchdog = callbacks.MemoryWatchdog(on_breach="shrink", limit_bytes=2**40)
    with pytest.raises(ValueError, match="SpectralNormalization"):
        models.fit(model, callbacks=[watchdog])
    assert int(model.optimizer.iterations) == 0


def test_shrinking_needs_a_limit(counting):
    watchdog = callbacks.MemoryWatchdog(on_breach="shrink")
    with pytest.raises(ValueError, match="limit_bytes=None on CPU:0"):
        models.fit(models.regressor(AccumModel), callbacks=[watchdog])


def test_the_thread_ends_after_an_exception():
    watchdog = callbacks.MemoryWatchdog(interval_seconds=SOON)

    def fail(model):
        assert watching_threads()
        raise OSError("injected")

    model = models.regressor(keras.Model)
    with pytest.raises(OSError, match="injected") as kept:
        models.fit(model, callbacks=[watchdog, models.AtBatch(1, fail)])
    wait_until(lambda: not watching_threads())
    # The next `fit` is watched again.
    count = len(watchdog.readings)
    models.fit(model, callbacks=[watchdog])
    assert len(watchdog.readings) >= count + 2
    assert watching_threads() == []
    assert kept is not None


def test_a_reader_that_fails_does_not_end_training(caplog):
    def fail(reading):
        raise OSError("no dashboard")

    watchdog = callbacks.MemoryWatchdog(interval_seconds=SOON, on_reading=fail)
    models.fit(
        models.regressor(keras.Model), callbacks=[watchdog, Wait(watchdog)]
    )
    assert len([r for r in caplog.records if r.exc_info]) == 1
    assert "MemoryWatchdog fails, and keeps trying" in caplog.text


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_utilization": 0},
        {"max_utilization": 1.1},
        {"max_utilization": float("nan")},
        {"interval_seconds": 0},
        {"interval_seconds": float("nan")},
        {"on_breach": "ignore"},
        {"min_microbatch_size": 0},
        {"min_microbatch_size": None},
        {"max_host_utilization": 0},
        {"hysteresis": -0.1},
        {"cooldown_seconds": -1},
        {"limit_bytes": 0},
        {"max_readings": 0},
    ],
    ids=str,
)
def test_bad_arguments(arguments):
    with pytest.raises(ValueError, match=f"{next(iter(arguments))}.*Expected"):
        callbacks.MemoryWatchdog(**arguments)


PLAIN_CPU = """
import logging
logging.basicConfig(level="INFO", format="%(message)s", force=True)
import keras
from keras_tfopt import callbacks

watchdog = callbacks.MemoryWatchdog(interval_seconds=0.01)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x, y = keras.ops.ones((16, 4)), keras.ops.ones((16, 1))
model.fit(x, y, epochs=3, callbacks=[watchdog], verbose=0)
(device,) = watchdog.readings[-1].devices
print(device.allocated_bytes, device.peak_bytes, device.utilization_ratio)
print(watchdog.readings[-1].host.rss_bytes > 2**20)
"""


def test_a_cpu_that_counts_nothing_leaves_the_host():
    process = subprocesses.run_python(
        "-c",
        PLAIN_CPU,
        TF_CPU_ALLOCATOR_USE_BFC=None,
        TF_ENABLE_ONEDNN_OPTS="0",
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == ["None", "None", "None", "True"]
    lines = process.stderr.splitlines()
    assert sum("No allocator statistics" in line for line in lines) == 1
    assert sum("No utilization of CPU:0" in line for line in lines) == 1


UNDER_A_LIMIT = """
import json
import keras
import numpy as np
import tensorflow as tf
from keras_tfopt import callbacks
from keras_tfopt import memory
from keras_tfopt.memory.limit import device_limit_bytes
from tests.callbacks import test_memory_watchdog as tests

LIMIT = device_limit_bytes("CPU:0")
STEPS = 16


def ballast(size):
    return tf.fill((int(size) // 4,), 1.0)


class Grow(keras.callbacks.Callback):
    def __init__(self, needed):
        super().__init__()
        # Room for a whole batch at first, and less after each step.
        self.held = [ballast(0.6 * LIMIT - needed)]

    def on_train_batch_end(self, batch, logs=None):
        self.held.append(ballast(0.03 * LIMIT))


def train(*added):
    keras.utils.set_random_seed(0)
    model = tests.wide(keras.Model)
    tests.fit_wide(model, epochs=STEPS, callbacks=list(added))
    return model.get_weights()


# One region of memory, where the allocator would take many small ones.
ballast(0.92 * LIMIT)
expected = train()
window = memory.PeakWindow("CPU:0")
train()
needed = window.read().peak_bytes
watchdog = callbacks.MemoryWatchdog(0.85, 0.01, on_breach="shrink")
actual = train(watchdog, Grow(needed), tests.Wait(watchdog))
warning = callbacks.MemoryWatchdog(0.85, 0.01)
steps = []
count = keras.callbacks.LambdaCallback(
    on_train_batch_end=lambda batch, logs: steps.append(batch)
)
try:
    train(warning, count, Grow(needed), tests.Wait(warning))
    error = None
except tf.errors.ResourceExhaustedError as raised:
    error = type(raised).__name__
print(json.dumps({
    "difference": max(
        float(np.max(np.abs(a - b)))
        for a, b in zip(actual, expected, strict=True)
    ),
    "needed": needed / LIMIT,
    "sizes": [event.new.microbatch_size for event in watchdog.plan_events],
    "steps": [event.step for event in watchdog.plan_events],
    "peak": max(r.devices[0].utilization_ratio for r in watchdog.readings),
    "warned": [b.device for b in warning.breaches],
    "error": error,
    "steps until error": len(steps),
}))
"""


def test_shrinking_prevents_the_error_that_the_same_run_meets_without():
    printed = subprocesses.run_source(
        UNDER_A_LIMIT,
        TF_CPU_ALLOCATOR_USE_BFC="true",
        TF_CPU_BFC_MEM_LIMIT_IN_MB="40",
        TF_ENABLE_ONEDNN_OPTS="0",
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    result = json.loads(printed.splitlines()[-1])
    # Without the shrinking: warned, and ended all the same.
    assert result["error"] == "ResourceExhaustedError", result
    assert result["warned"] == ["CPU:0"]
    assert result["steps until error"] < 16
    # With it, on the same memory: to the end, with the same weights.
    assert result["difference"] < 1e-6
    assert result["sizes"][0] == 2048
    assert result["steps"][0] < result["steps until error"]
    assert 0.85 < result["peak"] < 1
