"""Padding is proven exact on a batch before a step is made with it."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import ExecutionPlan
from keras_tfopt.accumulation import TRAINING
from keras_tfopt.accumulation import PaddingError
from keras_tfopt.accumulation import UndecidedPaddingError
from keras_tfopt.compilation import CompilationSettings
from keras_tfopt.training.batch import relax_rows
from keras_tfopt.training.batch import spec_of
from keras_tfopt.training.padded_function import padded_step_function
from keras_tfopt.training.row_padding import RowPadding
from keras_tfopt.training.xla_policy import XLAPolicy
from tests import models
from tests.equivalence import unchanged

PLAN = ExecutionPlan(jit_compile=True, padded_rows=8)


def _batch(rows):
    return tuple(tf.constant(array[:rows]) for array in (models.X, models.Y))


def _function(model, batch, plan=PLAN):
    spec = relax_rows(spec_of(batch))
    return padded_step_function(model, spec, batch, plan, TRAINING, 1)


def test_a_batch_that_is_not_finite_proves_nothing():
    model = models.regressor(keras.Model)
    x, y = _batch(8)
    function = _function(model, (x, y))
    value = tf.constant(1)
    with unchanged(model):
        # Even if it is full: others will not be.
        with pytest.raises(UndecidedPaddingError, match="not finite"):
            function([(x, y * np.inf)], value)
    function([(x, y)], value)
    assert int(model.optimizer.iterations) == 1
    # Once proven, it is not asked again.
    function([(x[:5], y[:5] * np.inf)], value)
    assert int(model.optimizer.iterations) == 2


def _drawing(x):
    return x * tf.random.uniform(tf.shape(x))


def _writing(variable, x):
    variable.assign_add(1.0)
    return x


@pytest.mark.parametrize(
    "apply, reason",
    [
        (_drawing, "draws numbers by RandomUniform"),
        (functools.partial(_writing, tf.Variable(0.0)), "writes .* past Keras"),
        (
            lambda x: keras.random.dropout(x, 0.5),
            "changes variable '.*seed_generator_state'",
        ),
    ],
    ids=["hidden", "raw", "seed"],
)
def test_effects_are_refused_without_a_trial(apply, reason):
    inputs = keras.Input((4,))
    outputs = keras.layers.Lambda(apply, output_shape=(4,))(inputs)
    model = models.compiled(keras.Model(inputs, outputs))
    with pytest.raises(PaddingError, match=reason):
        _function(model, _batch(5))


def test_what_is_not_dense_is_refused():
    batch = (tf.ragged.constant([[1.0], [2.0, 3.0]]), tf.ones((2, 1)))
    with pytest.raises(PaddingError, match="only those of dense tensors"):
        _function(models.regressor(keras.Model), batch)


def test_waits_longer_each_time_that_a_batch_tells_nothing():
    padding = RowPadding(CompilationSettings(on_new_shape="pad"))
    for steps in (10, 100):
        reason = padding.refuse(UndecidedPaddingError("why"))
        assert reason == f"rows are not padded for {steps} steps: why"
        padding.note_steps(steps - 1)
        assert padding.is_paused
        padding.note_steps(1)
        assert not padding.is_paused
    shapes = (("float32", (5, 4)),)
    assert padding.rows_for(ExecutionPlan(), shapes, []) == 5
    padding.refuse(PaddingError("why"))
    assert padding.rows_for(ExecutionPlan(), shapes, []) is None
    padding.reset()
    split = ExecutionPlan(microbatch_size=3)
    assert padding.rows_for(split, shapes, []) == 3


def test_replicas_have_rows_of_their_own(caplog):
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = models.regressor(keras.Model)
    settings = CompilationSettings(on_new_shape="pad")
    policy = XLAPolicy(settings, "training", False)
    policy.prepare(model, _batch(8), ExecutionPlan())
    plan = ExecutionPlan(jit_compile=True)
    assert policy.adapt(plan, _batch(8)) == plan
    policy.switch("on")
    assert policy.adapt(plan, _batch(8)) == plan
    assert "not padded: each replica has rows of its own" in caplog.text
