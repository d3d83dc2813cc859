"""Memory of a real GPU: read, moved, and made more of."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from keras_tfopt import memory
from keras_tfopt import plan_memory
from keras_tfopt.memory.readings import MemoryReader

pytestmark = pytest.mark.gpu

DEVICE = "GPU:0"


@pytest.fixture
def batch():
    random = np.random.default_rng(0)
    x = random.normal(size=(2048, 64)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def perceptron(**settings):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((64,))
    x = inputs
    for _ in range(12):
        x = keras.layers.Dense(512, activation="relu")(x)
    model = AccumModel(inputs, keras.layers.Dense(1)(x), **settings)
    model.compile("adam", "mse")
    return model


def test_allocator_and_driver_know_the_gpu():
    kept = tf.zeros((2**22,))
    reader = MemoryReader([DEVICE])
    try:
        (reading,) = reader.read().devices
    finally:
        reader.close()

    assert "GPU" in kept.device
    assert reading.allocated_bytes >= 2**24
    assert 0 < reading.utilization_ratio <= 1
    # The driver counts the allocator's pool, and CUDA itself.
    assert reading.driver.used_bytes > reading.allocated_bytes
    assert reading.driver.total_bytes >= reading.limit_bytes


def test_watchdog_reads_while_training_goes_on(batch):
    watchdog = callbacks.MemoryWatchdog(interval_seconds=0.05)
    perceptron().fit(
        *batch, batch_size=64, epochs=5, verbose=0, callbacks=[watchdog]
    )
    assert any(
        reading.devices[0].utilization_ratio for reading in watchdog.readings
    )


def peak_of_a_step(batch, **settings):
    model = perceptron(**settings)
    model.fit(*batch, batch_size=2048, verbose=0)
    before = memory.reset_allocator_peak(DEVICE)
    model.fit(*batch, batch_size=2048, verbose=0)
    after = memory.read_allocator_stats(DEVICE)
    return after.peak_bytes - before.current_bytes


def test_recomputation_and_micro_batches_need_less(batch):
    whole = peak_of_a_step(batch)
    assert peak_of_a_step(batch, remat=4) < whole
    assert peak_of_a_step(batch, microbatch_size=256) < whole


def test_planned_step_stays_below_its_limit(batch):
    model = perceptron()
    before = memory.read_allocator_stats(DEVICE)
    limit = before.current_bytes + 48 * 2**20
    found = plan_memory(model, batch, limit_bytes=limit)
    model.change_plan(found.plan, "planned")
    memory.reset_allocator_peak(DEVICE)
    model.fit(*batch, batch_size=2048, verbose=0)
    # Libraries for products take room of their own in the first step.
    assert memory.read_allocator_stats(DEVICE).peak_bytes < 1.25 * limit


def test_models_take_turns_and_compute_the_same(batch):
    expected, model = perceptron(), perceptron()
    expected.fit(*batch, batch_size=512, epochs=2, shuffle=False, verbose=0)
    with memory.SwapManager(budget_bytes=2**20) as swap:
        swap.add("model", model)
        for epoch in range(2):
            model.fit(
                *batch,
                batch_size=512,
                initial_epoch=epoch,
                epochs=epoch + 1,
                shuffle=False,
                verbose=0,
            )
            swap.evict("model")
    for ours, theirs in zip(model.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
