"""Models whose writes cannot be kept out of a step still train."""

import keras
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from tests import builders
from tests import models
from tests.equivalence import assert_equal_training


class BranchCounter(keras.layers.Layer):
    """Counts the batches whose sum is positive."""

    def build(self, input_shape):
        self.count = self.add_weight(
            shape=(), initializer="zeros", trainable=False
        )

    def call(self, inputs):
        def counted():
            self.count.assign_add(1.0)
            return inputs

        is_positive = keras.ops.sum(inputs) > 0
        return keras.ops.cond(is_positive, counted, lambda: inputs)


def _maker(fault=None):
    def make(cls, **settings):
        inputs = keras.Input((4,))
        outputs = builders.Probe(fault)(BranchCounter()(inputs))
        model = cls(inputs, keras.layers.Dense(1)(outputs), **settings)
        return models.compiled(model, steps_per_execution=2)

    return make


@pytest.mark.filterwarnings("ignore:.*writes a variable in a branch")
def test_equals_stock():
    outcome = assert_equal_training(_maker(), models.fit)
    assert 0 < float(outcome.model.layers[1].count) < 6


def test_says_what_it_cannot_do():
    with pytest.warns(UserWarning, match="branch.*is not run again"):
        models.fit(_maker()(AccumModel), epochs=1)


@pytest.mark.filterwarnings("ignore:.*writes a variable in a branch")
def test_a_step_that_fails_is_not_run_again():
    fault = builders.Fault()
    model = _maker(fault)(AccumModel)
    models.fit(model)
    fault.arm()
    with pytest.raises(tf.errors.ResourceExhaustedError) as raised:
        models.fit(model, callbacks=[callbacks.OOMRecovery()])
    assert "stays" in raised.value.__notes__[0]


def test_splitting_is_refused():
    with pytest.raises(ValueError, match="branch of a conditional"):
        models.fit(_maker()(AccumModel, microbatch_size=2))
