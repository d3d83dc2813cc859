"""Several real GPUs, if there are any."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from keras_tfopt import distribution

pytestmark = pytest.mark.gpu


def train(**settings):
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    # The last batch has one row: nothing is left for the other GPUs.
    x = random.normal(size=(65, 8)).astype("float32")
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(16, activation="tanh")(inputs)
    model = AccumModel(inputs, keras.layers.Dense(1)(hidden), **settings)
    model.compile("adam", "mse")
    y = x.sum(axis=1, keepdims=True)
    model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize("operations", [None, "nccl", "hierarchical_copy"])
def test_several_gpus_train_like_one(operations):
    if len(tf.config.list_physical_devices("GPU")) < 2:
        pytest.skip("one GPU only")
    expected = train()
    chosen = distribution.strategy("mirrored", cross_device_ops=operations)
    with chosen.scope():
        actual = train(microbatch_size=4)
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_xla_is_chosen_by_measuring():
    x = np.ones((512, 32), "float32")
    model = keras.Sequential(
        [keras.Input((32,)), *(keras.layers.Dense(64) for _ in range(4))]
    )
    model.compile("adam", "mse")
    xla = callbacks.XLACompilation(mode="auto", trial_steps=5)
    model.fit(x, np.ones((512, 64)), batch_size=16, verbose=0, callbacks=[xla])
    assert any("with XLA" in event.reason for event in xla.plan_events)
