"""Rematerialization in a stock `fit` on several replicas."""

import json

import pytest

from tests import subprocesses

_SOURCE = """
import json

import keras
import numpy as np
import tensorflow as tf

from keras_tfopt import apply_remat

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)
random = np.random.default_rng(0)
x = random.normal(size=(16, 4)).astype("float32")
y = random.normal(size=(16, 1)).astype("float32")


def train(**remat):
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"],
        cross_device_ops=tf.distribute.HierarchicalCopyAllReduce(),
    )
    with strategy.scope():
        outputs = inputs = keras.Input((4,))
        for seed in range(2):
            outputs = keras.layers.Dense(
                8, activation="tanh", activity_regularizer="l2"
            )(outputs)
            outputs = keras.layers.BatchNormalization()(outputs)
            outputs = keras.layers.Dropout(0.3, seed=seed)(outputs)
        model = keras.Model(inputs, keras.layers.Dense(1)(outputs))
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    if remat:
        apply_remat(model, **remat)
    model.fit(x, y, batch_size=8, verbose=0, shuffle=False)
    return model.get_weights()


plain = train()
print(json.dumps([
    max(float(np.abs(a - b).max()) for a, b in zip(plain, train(**remat)))
    for remat in ({"every": 2}, {"names": ["dense", "batch_normalization_1"]})
]))
"""


@pytest.mark.distributed
def test_replicas_train_the_same():
    printed = subprocesses.run_source(_SOURCE, TF_CPP_MIN_LOG_LEVEL="3")
    differences = json.loads(printed.splitlines()[-1])
    assert len(differences) == 2
    assert max(differences) < 1e-6
