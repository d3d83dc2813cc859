"""Under a strategy that has no replicas to run, Keras' own step stays."""

import keras
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from keras_tfopt import plan_memory
from tests import models
from tests.equivalence import assert_same
from tests.equivalence import run


@pytest.fixture
def one_device():
    return tf.distribute.OneDeviceStrategy("/cpu:0")


@pytest.fixture
def foreign():
    return tf.distribute.experimental.CentralStorageStrategy(["/cpu:0"])


@pytest.mark.parametrize("settings", [{}, {"microbatch_size": 4}], ids=str)
def test_one_device_equals_stock(one_device, settings):
    def make(cls, **settings):
        with one_device.scope():
            return models.regressor(cls, **settings)

    actual = run(make, models.fit, AccumModel, **settings)
    assert_same(actual, models.stock_outcome())


def test_foreign_strategy_keeps_the_stock_step(foreign):
    def make(cls):
        with foreign.scope():
            return models.regressor(cls)

    assert_same(run(make, models.fit, AccumModel), models.stock_outcome())


def test_splitting_is_refused(foreign):
    with foreign.scope():
        model = models.network(AccumModel, microbatch_size=4)
        with pytest.raises(ValueError, match="CentralStorage.*Expected"):
            models.compiled(model)


def test_gathering_is_refused(one_device):
    with one_device.scope():
        model = models.network(AccumModel, gather_steps=2)
        with pytest.raises(ValueError, match="gather_steps=2.*Expected"):
            models.compiled(model)


def test_recovery_is_refused(foreign):
    with foreign.scope():
        model = models.regressor(keras.Model)
    with pytest.raises(ValueError, match="CentralStorage.*Expected"):
        models.fit(model, callbacks=[callbacks.OOMRecovery()])


def test_planning_is_refused(one_device):
    with one_device.scope():
        model = models.regressor(keras.Model)
    with pytest.raises(ValueError, match="OneDeviceStrategy.*Expected"):
        plan_memory(model, (models.X, models.Y))


def test_recovery_of_an_own_step_is_refused(one_device):
    class Net(models.network(keras.Model).__class__):
        def train_step(self, data):
            return super().train_step(data)

    with one_device.scope():
        model = models.regressor(Net)
    recovery = callbacks.OOMRecovery(half_batches=True)
    with pytest.raises(ValueError, match="Net.train_step.*Expected"):
        models.fit(model, callbacks=[recovery])
