"""The self-check finds what splitting changes, and where."""

import keras
import numpy as np
import pytest

from keras_tfopt import AccumModel
from tests import models
from tests.equivalence import unchanged


def _model(layers, loss="mse", **settings):
    outputs = inputs = keras.Input((4,))
    for layer in layers:
        outputs = layer(outputs)
    outputs = keras.layers.Dense(1, name="head")(outputs)
    model = AccumModel(inputs, outputs, **(settings or {"microbatch_size": 4}))
    model.compile("adam", loss)
    return model


def test_equal_where_the_maths_is():
    model = _model([keras.layers.Dense(5, activation="tanh")])
    model.check_equivalence((models.X, models.Y))
    with unchanged(model):
        report = model.check_equivalence((models.X, models.Y))
    assert report.is_equal
    assert report.error < 1e-6
    assert len(report.errors) == len(model.trainable_variables)
    whole, split = report.losses["loss"]
    expected = np.mean((model.predict(models.X, verbose=0) - models.Y) ** 2)
    assert whole == pytest.approx(expected, abs=1e-6)
    assert split == pytest.approx(expected, abs=1e-6)
    assert "same gradient" in str(report)


@pytest.mark.parametrize(
    "layer", [keras.layers.BatchNormalization, keras.layers.Dropout]
)
def test_layers_that_see_micro_batches_are_named(layer):
    arguments = (0.5,) if layer is keras.layers.Dropout else ()
    report = _model([layer(*arguments, name="culprit")]).check_equivalence(
        (models.X, models.Y)
    )
    assert report.error > 1e-3
    assert max(report.inference_errors.values()) < 1e-5
    assert "culprit" in report.cause


def test_a_loss_that_couples_rows_is_named():
    def largest(y_true, y_pred):
        error = keras.ops.abs(y_true - y_pred)
        return error / keras.ops.max(error)

    inputs = keras.Input((4,))
    outputs = {
        "a": keras.layers.Dense(1, name="a")(inputs),
        "b": keras.layers.Dense(1, name="b")(inputs),
    }
    model = AccumModel(inputs, outputs, accumulation_steps=3)
    model.compile("sgd", {"a": "mse", "b": largest})
    y = {"a": models.Y, "b": models.Y}
    report = model.check_equivalence((models.X, y))
    assert not report.is_equal
    assert report.output == "b_loss"
    assert report.variable.startswith("b/")
    assert "b_loss" in report.cause
    whole, split = report.losses["a_loss"]
    assert whole == pytest.approx(split, abs=1e-6)


def test_assumptions_are_reported():
    def scalar(y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_true - y_pred))

    report = _model([], scalar).check_equivalence((models.X, models.Y))
    assert report.is_equal
    assert any("one number" in text for text in report.assumptions)


def test_nothing_to_compare():
    model = models.regressor(AccumModel)
    with pytest.raises(ValueError, match="microbatch_size"):
        model.check_equivalence((models.X, models.Y))
