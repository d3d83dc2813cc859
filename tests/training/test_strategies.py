"""Under a distribution strategy a model keeps Keras' own step."""

import keras
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from tests import models
from tests.equivalence import assert_same
from tests.equivalence import run


@pytest.fixture
def strategy():
    return tf.distribute.OneDeviceStrategy("/cpu:0")


def test_unsplit_equals_stock(strategy):
    def make(cls):
        with strategy.scope():
            return models.regressor(cls)

    expected = run(make, models.fit, keras.Model)
    assert_same(run(make, models.fit, AccumModel), expected)


@pytest.mark.parametrize(
    "settings", [{"microbatch_size": 4}, {"gather_steps": 2}], ids=str
)
def test_splitting_is_refused(strategy, settings):
    with strategy.scope():
        model = models.network(AccumModel, **settings)
        with pytest.raises(ValueError, match="OneDeviceStrategy.*Expected"):
            models.compiled(model)


def test_recovery_is_refused(strategy):
    with strategy.scope():
        model = models.regressor(keras.Model)
    with pytest.raises(ValueError, match="OneDeviceStrategy.*Expected"):
        models.fit(model, callbacks=[callbacks.OOMRecovery()])
