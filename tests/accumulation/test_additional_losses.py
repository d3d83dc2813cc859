"""Regularizers, `add_loss` and overridden `compute_loss`."""

import keras
from keras import ops
import pytest

from tests.accumulation.assumptions import assert_different_and_assumed
from tests.accumulation.assumptions import assert_equal_and_assumed
from tests.accumulation.branches import CLASSES
from tests.accumulation.branches import ROWS
from tests.accumulation.branches import normal
from tests.accumulation.branches import trainer
from tests.accumulation.branches import uniform
from tests.equivalence import assert_equal_training

FIT = trainer(normal(ROWS, 4), normal(ROWS, CLASSES), uniform(ROWS))


class Penalty(keras.layers.Layer):
    """Adds a loss that depends on the rows that pass through."""

    def __init__(self, function, **kwargs):
        super().__init__(**kwargs)
        self.function = function

    def call(self, inputs):
        self.add_loss(self.function(inputs))
        return inputs


def mean_square(values):
    """A mean over the rows."""
    return 0.1 * ops.mean(ops.square(values))


def sum_square(values):
    """A sum over the rows."""
    return 0.1 * ops.sum(ops.square(values))


def _model(layer, mixin=None):
    """Returns a builder of a model with a layer in the middle."""

    def make_model(cls, **settings):
        if mixin is not None:
            cls = type("Net", (mixin, cls), {})
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(5, activation="tanh")(inputs)
        hidden = layer()(hidden)
        model = cls(inputs, keras.layers.Dense(CLASSES)(hidden), **settings)
        # Weighted by other numbers than rows, unlike what is added to it.
        loss = keras.losses.MeanSquaredError("mean_with_sample_weight")
        model.compile(keras.optimizers.SGD(0.1), loss)
        return model

    return make_model


def test_regularizers():
    def layer():
        return keras.layers.Dense(
            5,
            kernel_regularizer=keras.regularizers.L1L2(0.01, 0.02),
            bias_regularizer="l2",
            activity_regularizer=keras.regularizers.L2(0.05),
        )

    assert_equal_training(_model(layer), FIT, microbatch_size=4)


def test_added_mean():
    make_model = _model(lambda: Penalty(mean_square, name="penalty"))
    assert_equal_and_assumed(
        make_model, FIT, "'penalty' (Penalty) calls `add_loss`"
    )


def test_added_sum_warns():
    make_model = _model(lambda: Penalty(sum_square, name="penalty"))
    assert_different_and_assumed(
        make_model, FIT, "taken for a mean over the rows"
    )


def test_added_loss_besides_an_activity_regularizer():
    make_model = _model(
        lambda: Penalty(mean_square, name="penalty", activity_regularizer="l2")
    )
    assert_equal_and_assumed(
        make_model, FIT, "'penalty' (Penalty) calls `add_loss`"
    )


class _LossAndMore:
    """Adds a mean over the rows to the compiled loss."""

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return 0.5 * loss + ops.mean(ops.abs(y_pred))


class _OwnLoss:
    """Computes a loss alone, with a signature of its own."""

    def compute_loss(self, x, y, y_pred, sample_weight):
        return ops.mean(ops.square(y - y_pred)) + sum(self.losses)


class _LossTwice:
    """Computes the compiled loss twice, with other weights."""

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        first = super().compute_loss(x, y, y_pred, sample_weight, training)
        weight = ops.sqrt(sample_weight)
        return first + super().compute_loss(x, -y, y_pred, weight, training)


class _LossSum:
    """Adds a sum over the rows."""

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + 0.1 * ops.sum(ops.abs(y_pred))


def _regularized():
    return keras.layers.Dense(5, kernel_regularizer="l2")


@pytest.mark.parametrize("mixin", [_LossAndMore, _OwnLoss, _LossTwice])
def test_own_compute_loss(mixin):
    make_model = _model(_regularized, mixin)
    assert_equal_and_assumed(
        make_model, FIT, "`Net.compute_loss` is overridden"
    )


def test_own_compute_loss_with_a_sum_warns():
    make_model = _model(_regularized, _LossSum)
    assert_different_and_assumed(
        make_model, FIT, "taken for a mean over the rows"
    )
