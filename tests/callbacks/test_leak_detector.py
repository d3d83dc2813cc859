"""Leaks are found with their rate and cause, and a healthy run has none."""

import logging
import time
import tracemalloc

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import callbacks
from keras_tfopt.callbacks.leak_detector import describe_leak
from keras_tfopt.memory import read_allocator_stats
from tests import models

MIB = 2**20
LEAK = 16 * MIB
EPOCHS = 9


class Leak(keras.callbacks.Callback):
    """Keeps what a function returns, at the end of each epoch."""

    def __init__(self, make):
        super().__init__()
        self.make = make
        self.kept = []

    def on_epoch_end(self, epoch, logs=None):
        self.kept.append(self.make())


def tensor():
    return tf.fill((LEAK // 4,), 1.0)


def array():
    return np.full((LEAK // 4,), 1.0, "float32")


def traced():
    """Returns a function that was traced, and an array that it keeps."""
    kept = array()
    function = tf.function(lambda x: x + len(kept))
    function(tf.ones((1,)))
    return function, kept


def line_of(function):
    """Returns the number of the line under the head of a function."""
    return function.__code__.co_firstlineno + 1


def detected(make=lambda: None, epochs=EPOCHS, **kwargs):
    detector = callbacks.LeakDetector(max_bytes_per_epoch=LEAK // 2, **kwargs)
    model = models.regressor(keras.Model)
    models.fit(model, epochs=epochs, callbacks=[Leak(make), detector])
    return detector


def test_a_healthy_run_has_no_leak(caplog):
    caplog.set_level(logging.WARNING, "keras_tfopt")
    detector = detected(epochs=12)
    assert detector.leaks == ()
    assert caplog.messages == []
    assert abs(detector.slopes["host"].bytes_per_epoch) < LEAK // 2


def test_tensors_that_are_kept(caplog):
    if read_allocator_stats() is None:
        pytest.skip("the device counts nothing")
    told = []
    detector = detected(tensor, on_leak=told.append)
    leaks = {leak.device: leak for leak in detector.leaks}
    # On a CPU both are the same memory.
    assert set(leaks) == {"CPU:0", "host"}
    assert leaks["CPU:0"].bytes_per_epoch == pytest.approx(LEAK, rel=0.1)
    # Two epochs are left out, and five are enough.
    assert leaks["CPU:0"].epoch == 6
    assert leaks["CPU:0"].functions_per_epoch == 0
    assert tuple(told) == detector.leaks
    # Each is told once, though it goes on.
    assert len(caplog.messages) == 2
    assert "Memory of CPU:0 grows by 16.0 MiB per epoch" in caplog.text


def test_retracing_and_the_line_of_code_are_named():
    detector = detected(traced, trace_allocations=True)
    (leak,) = (leak for leak in detector.leaks if leak.device == "host")
    assert leak.bytes_per_epoch == pytest.approx(LEAK, rel=0.1)
    assert leak.functions_per_epoch >= 1
    assert leak.sites[0].startswith(f"{__file__}:{line_of(array)} +")
    text = describe_leak(leak)
    assert "traced again and again" in text
    assert f"Grown: {leak.sites[0]}" in text
    assert not tracemalloc.is_tracing()


def test_a_small_leak_is_within_what_is_allowed():
    detector = callbacks.LeakDetector(max_bytes_per_epoch=4 * LEAK)
    models.fit(
        models.regressor(keras.Model),
        epochs=EPOCHS,
        callbacks=[Leak(array), detector],
    )
    assert detector.leaks == ()
    assert detector.slopes["host"].is_growing


def test_tracing_of_allocations_ends_after_an_exception():
    detector = callbacks.LeakDetector(trace_allocations=True)

    def fail(model):
        assert tracemalloc.is_tracing()
        raise OSError("injected")

    with pytest.raises(OSError, match="injected"):
        models.fit(
            models.regressor(keras.Model),
            callbacks=[detector, models.AtBatch(1, fail)],
        )
    end = time.monotonic() + 30
    while tracemalloc.is_tracing() and time.monotonic() < end:
        time.sleep(0.05)
    assert not tracemalloc.is_tracing()


def test_somebody_elses_tracing_goes_on():
    tracemalloc.start()
    try:
        detected(epochs=1, trace_allocations=True)
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_ratio_per_epoch": -0.1},
        {"max_ratio_per_epoch": float("nan")},
        {"max_bytes_per_epoch": 0},
        {"skip_epochs": -1},
        {"skip_epochs": None},
        {"min_epochs": 4},
    ],
    ids=str,
)
def test_bad_arguments(arguments):
    with pytest.raises(ValueError, match=f"{next(iter(arguments))}.*Expected"):
        callbacks.LeakDetector(**arguments)
