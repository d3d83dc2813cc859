"""Metrics equal stock Keras, or a warning says what is assumed."""

import keras
from keras import ops
import pytest

from tests.accumulation.assumptions import assert_different_and_assumed
from tests.accumulation.branches import CLASSES
from tests.accumulation.branches import ROWS
from tests.accumulation.branches import classes
from tests.accumulation.branches import normal
from tests.accumulation.branches import one_hot
from tests.accumulation.branches import single
from tests.accumulation.branches import trainer
from tests.accumulation.branches import uniform
from tests.equivalence import assert_equal_training

X = normal(ROWS, 4)
Y = normal(ROWS, CLASSES)
WEIGHT = uniform(ROWS)


def worst_entry(y_true, y_pred):
    """One number per example."""
    return ops.max(ops.abs(y_true - y_pred), axis=-1)


class Extremes(keras.metrics.Metric):
    """The smallest and largest prediction so far, as a dict."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.low = self.add_variable((), "zeros", name="low")
        self.high = self.add_variable((), "zeros", name="high")

    def update_state(self, y_true, y_pred, sample_weight=None):
        del y_true, sample_weight
        self.low.assign(ops.minimum(self.low, ops.min(y_pred)))
        self.high.assign(ops.maximum(self.high, ops.max(y_pred)))

    def result(self):
        return {"lowest": self.low.value, "highest": self.high.value}


def _metrics():
    """Returns metrics for each output."""
    return {
        "binary": [
            "accuracy",
            keras.metrics.AUC(num_thresholds=20, name="auc"),
            keras.metrics.Precision(name="precision"),
            keras.metrics.Recall(name="recall"),
        ],
        "several": [
            "accuracy",
            keras.metrics.F1Score("macro", name="f1"),
            keras.metrics.TopKCategoricalAccuracy(2, name="top"),
        ],
        "real": [
            keras.metrics.R2Score(name="r2"),
            keras.metrics.RootMeanSquaredError(name="rmse"),
            keras.metrics.CosineSimilarity(name="cosine"),
            keras.metrics.MeanMetricWrapper(worst_entry, name="wrapped"),
            worst_entry,
        ],
    }


def _three_outputs(**kwargs):
    def make_model(cls, **settings):
        inputs = keras.Input((4,))
        outputs = {
            "binary": keras.layers.Dense(1, "sigmoid", name="binary")(inputs),
            "several": keras.layers.Dense(CLASSES, "softmax", name="several")(
                inputs
            ),
            "real": keras.layers.Dense(CLASSES, name="real")(inputs),
        }
        model = cls(inputs, outputs, **settings)
        losses = {
            "binary": "binary_crossentropy",
            "several": "categorical_crossentropy",
            "real": "mse",
        }
        made = {key: make() for key, make in kwargs.items()}
        model.compile(keras.optimizers.SGD(0.1), losses, **made)
        return model

    return make_model


TARGETS = {
    "binary": (classes(ROWS, 1) > 0).astype("float32"),
    "several": one_hot(ROWS),
    "real": Y,
}


def test_metrics_of_keras():
    def unweighted():
        return {
            "binary": ["accuracy", keras.metrics.AUC(name="area")],
            "several": [keras.metrics.F1Score("micro", name="f1_micro")],
            "real": [keras.metrics.R2Score(name="variance")],
        }

    make_model = _three_outputs(metrics=unweighted, weighted_metrics=_metrics)
    fit = trainer(X, TARGETS, WEIGHT)
    outcome = assert_equal_training(make_model, fit, microbatch_size=4)
    assert len(outcome.history) == 4 + 4 + 12


def test_own_metric_with_a_dict():
    @single
    def make_model(model):
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=[Extremes()])

    outcome = assert_equal_training(
        make_model, trainer(X, Y), microbatch_size=4
    )
    assert "lowest" in outcome.history


class _OwnMetrics:
    """Metrics as attributes, updated in `compute_metrics`."""

    def prepare(self):
        self.mean = keras.metrics.Mean("prediction")
        self.error = keras.metrics.MeanAbsoluteError("error")

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.mean.update_state(y_pred)
        self.error.update_state(y, y_pred, sample_weight)
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**logs, "twice": 2 * self.error.result()}


def _mixed_with(*mixins):
    """Returns a builder of a functional model with methods of its own."""

    def make_model(cls, **settings):
        base = type("Net", (*mixins, cls), {})
        inputs = keras.Input((4,))
        model = base(inputs, keras.layers.Dense(CLASSES)(inputs), **settings)
        model.prepare()
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    return make_model


def test_own_metrics_in_compute_metrics():
    make_model = _mixed_with(_OwnMetrics)
    fit = trainer(X, Y, WEIGHT)
    outcome = assert_equal_training(make_model, fit, microbatch_size=4)
    assert {"prediction", "error", "twice"} <= set(outcome.history)


class Tracking(keras.layers.Layer):
    """Reports the mean of what passes through it, row by row."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.mean = keras.metrics.Mean("passing")

    def call(self, inputs):
        self.mean.update_state(inputs)
        return inputs


def test_metric_in_a_layer():
    def make_model(cls, **settings):
        inputs = keras.Input((4,))
        hidden = Tracking()(keras.layers.Dense(3)(inputs))
        model = cls(inputs, keras.layers.Dense(CLASSES)(hidden), **settings)
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    outcome = assert_equal_training(
        make_model, trainer(X, Y), microbatch_size=4
    )
    assert "passing" in outcome.history


def largest_entry(y_true, y_pred):
    """One number for the batch, that is no mean over its rows."""
    return ops.max(ops.abs(y_true - y_pred))


def test_number_for_a_batch_warns():
    @single
    def make_model(model):
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=[largest_entry])

    actual, expected = assert_different_and_assumed(
        make_model, trainer(X, Y), "'largest_entry' is given one number"
    )
    assert actual["loss"] == pytest.approx(expected["loss"], abs=1e-6)


class _NumbersInMetrics:
    """Numbers of a batch that no metric has summed."""

    def prepare(self):
        self.mean = keras.metrics.Mean("error")
        self.rows = keras.metrics.Sum("rows")

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        error = ops.mean(ops.abs(y - y_pred))
        self.mean.update_state(error)
        self.rows.update_state(ops.ones_like(y[:, 0]))
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**logs, "last": error}


def test_numbers_in_compute_metrics_warn():
    actual, expected = assert_different_and_assumed(
        _mixed_with(_NumbersInMetrics),
        trainer(X, Y),
        "Metric 'error' is given one number",
        "`Net.compute_metrics` computes ['last'] from the batch",
    )
    for key in ("loss", "rows"):
        assert actual[key] == pytest.approx(expected[key])
    for key in ("error", "last"):
        assert actual[key] != pytest.approx(expected[key])


class _MeanInLoss:
    """A mean of numbers for a batch, updated in `compute_loss`."""

    def prepare(self):
        self.mean = keras.metrics.Mean("seen")

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        self.mean.update_state(loss)
        return loss


def test_mean_in_compute_loss_warns():
    actual, expected = assert_different_and_assumed(
        _mixed_with(_MeanInLoss),
        trainer(X, Y),
        "Metric 'seen' is given one number",
        "`Net.compute_loss` is overridden",
    )
    assert actual["loss"] == pytest.approx(expected["loss"])
