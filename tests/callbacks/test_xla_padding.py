"""Batches of other numbers of rows share what XLA compiled, and add up."""

import functools
import logging
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from tests import models
from tests.callbacks.xla_models import lengths
from tests.callbacks.xla_models import maker
from tests.callbacks.xla_models import sequences
from tests.callbacks.xla_models import strings
from tests.equivalence import assert_same
from tests.equivalence import run

ROWS = (10, 7, 10, 3, 1, 9)


def _parts(*arrays, rows=ROWS):
    """Returns batches of the first rows of arrays."""
    return [tf.nest.map_structure(lambda a, n=n: a[:n], arrays) for n in rows]


def _fit(parts, *used):
    return lambda model: models.fit(
        model, models.streamed(parts), None, callbacks=list(used)
    )


def _check(make, parts, cls, tolerance=1e-6, expected=None, **settings):
    """Compares padded training to stock Keras, and returns the callback."""
    expected = expected or run(make, _fit(parts), keras.Model)
    xla = callbacks.XLACompilation(on_new_shape="pad")
    outcome = run(make, _fit(parts, xla), cls, **settings)
    assert_same(outcome, expected, tolerance)
    return xla


@functools.cache
def _stock_regression():
    parts = _parts(models.X, models.Y)
    return run(models.regressor, _fit(parts), keras.Model)


def _assert_padded(xla, rows, role="train"):
    """Asserts that all steps ran with the one shape that was compiled for."""
    stats = xla.stats(role)
    assert (stats.successes, stats.failures) == (1, 0)
    assert stats.compiled_shapes[0][0][1][0] == rows
    assert stats.uncompiled_shapes == ()
    return stats


@pytest.mark.parametrize(
    "cls, settings, compile_with, rows",
    [
        (keras.Model, {}, {}, 10),
        (AccumModel, {}, {"steps_per_execution": 4}, 10),
        (AccumModel, {"microbatch_size": 4}, {}, 4),
        (AccumModel, {"accumulation_steps": 3, "remat": 1}, {}, 4),
    ],
    ids=["plain", "several", "size", "count"],
)
def test_one_compilation_for_several_row_counts(
    cls, settings, compile_with, rows
):
    def make(cls, **settings):
        return models.regressor(cls, compile_with, **settings)

    parts = _parts(models.X, models.Y)
    xla = _check(make, parts, cls, expected=_stock_regression(), **settings)
    assert _assert_padded(xla, rows).compiled_steps == 2 * len(ROWS)
    if settings == {}:
        assert "float32[10, 4]" in xla.report()
        assert xla.stats().fusion.fusions > 0


class Tags(keras.layers.Layer):
    """Tells tokens apart, keeps their mask and regularizes what it gives."""

    def __init__(self, **kwargs):
        super().__init__(activity_regularizer="l2", **kwargs)
        self.supports_masking = True
        self.dense = keras.layers.Dense(3, kernel_regularizer="l1")

    def call(self, inputs):
        return self.dense(inputs)


def _tagger(cls, **settings):
    """Two inputs, two outputs, a mask, and each kind of weight."""
    inputs = {
        "tokens": keras.Input((5,), dtype="int32", name="tokens"),
        "features": keras.Input((4,), name="features"),
    }
    embedded = keras.layers.Embedding(7, 4, mask_zero=True)(inputs["tokens"])
    outputs = {
        "tags": Tags(name="tags")(embedded),
        "score": keras.layers.Dense(1, name="score")(
            keras.layers.Dense(5, activation="tanh")(inputs["features"])
        ),
    }
    model = cls(inputs, outputs, **settings)
    model.compile(
        # Sums of another order may not change the sign of a small update.
        keras.optimizers.Adam(1e-2, epsilon=1e-2),
        loss={
            "tags": keras.losses.SparseCategoricalCrossentropy(
                from_logits=True
            ),
            "score": keras.losses.MeanSquaredError("mean_with_sample_weight"),
        },
        loss_weights={"tags": 0.5, "score": 2.0},
        metrics={"tags": ["accuracy"], "score": ["mae"]},
        weighted_metrics={
            "tags": ["accuracy"],
            "score": [keras.metrics.RootMeanSquaredError()],
        },
    )
    return model


def _tagged():
    random = np.random.default_rng(0)
    tokens = random.integers(0, 7, (26, 5)).astype("int32")
    x = {"tokens": tokens, "features": models.X}
    y = {"tags": random.integers(0, 3, (26, 5)), "score": models.Y}
    weights = {
        "tags": random.uniform(0.5, 2, (26, 5)).astype("float32"),
        "score": models.WEIGHTS,
    }
    return _parts(x, y, weights, rows=(10, 7, 1, 10))


@functools.cache
def _stock_tags():
    return run(_tagger, _fit(_tagged()), keras.Model)


@pytest.mark.parametrize("size", [None, 4])
def test_masks_weights_and_several_outputs(size):
    xla = _check(
        _tagger,
        _tagged(),
        AccumModel,
        expected=_stock_tags(),
        microbatch_size=size,
    )
    _assert_padded(xla, size or 10)


def test_class_weights_and_inputs_that_must_not_be_zero():
    def make(cls, **settings):
        inputs = keras.Input((4,))
        # A row of zeros would have no finite loss.
        hidden = keras.layers.Dense(5)(
            keras.layers.Lambda(keras.ops.log)(inputs)
        )
        model = cls(inputs, keras.layers.Dense(3)(hidden), **settings)
        model.compile(
            keras.optimizers.SGD(1e-2),
            keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction="none"
            ),
            metrics=[
                "accuracy",
                keras.metrics.SparseTopKCategoricalAccuracy(2),
            ],
            weighted_metrics=["accuracy"],
        )
        return model

    x = np.exp(models.X)
    x = np.concatenate([x[:10], x[:7], x[:10], x[:3]])
    y = np.concatenate([models.CLASSES[:n] for n in (10, 7, 10, 3)])

    def fit(*used):
        return lambda model: models.fit(
            model,
            x,
            y,
            class_weight={0: 1.0, 1: 2.0, 2: 0.5},
            batch_size=8,
            callbacks=list(used),
        )

    xla = callbacks.XLACompilation(on_new_shape="pad")
    expected = run(make, fit(), keras.Model)
    assert_same(run(make, fit(xla), AccumModel), expected)
    _assert_padded(xla, 8)


def test_what_xla_refuses_is_refused_in_the_trial():
    parts = _parts(models.X, models.Y, rows=(10, 7))
    xla = _check(maker(strings), parts, AccumModel)
    assert (xla.stats().successes, xla.stats().failures) == (0, 1)
    assert "AsString of layer 'applied'" in xla.plan_events[-1].reason


def test_half_precision():
    def make(cls, **compile_with):
        policy = keras.mixed_precision.DTypePolicy("mixed_float16")
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(5, dtype=policy)(inputs)
        outputs = keras.layers.Dense(1, dtype=policy)(hidden)
        optimizer = keras.optimizers.LossScaleOptimizer(
            models.momentum(0.005), initial_scale=64.0
        )
        loss = keras.losses.MeanSquaredError("sum")
        return models.compiled(
            cls(inputs, outputs), optimizer=optimizer, loss=loss
        )

    parts = _parts(models.X, models.Y, rows=(10, 6, 3))
    # XLA rounds elsewhere, and float16 has three digits.
    xla = _check(make, parts, AccumModel, tolerance=2e-3)
    _assert_padded(xla, 10)


def test_evaluation_pads_what_training_does_not():
    inputs = keras.Input((4,))
    hidden = keras.layers.BatchNormalization()(inputs)
    hidden = keras.layers.Dropout(0.5, seed=1)(hidden)
    model = models.compiled(AccumModel(inputs, keras.layers.Dense(1)(hidden)))
    xla = callbacks.XLACompilation(on_new_shape="pad")
    models.fit(model, epochs=1)
    parts = models.streamed(_parts(models.X, models.Y))
    expected = model.evaluate(parts, verbose=0)
    actual = model.evaluate(parts, verbose=0, callbacks=[xla])
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    _assert_padded(xla, 10, "test")


def test_given_sizes():
    xla = callbacks.XLACompilation(on_new_shape="pad", row_buckets=(4, 9))
    parts = _parts(models.X, models.Y, rows=(10, 3, 1))
    expected = run(models.regressor, _fit(parts), keras.Model)
    assert_same(run(models.regressor, _fit(parts, xla), AccumModel), expected)
    compiled = [shapes[0][1][0] for shapes in xla.stats().compiled_shapes]
    # There is none for ten rows.
    assert compiled == [10, 4]
    assert xla.stats().compiled_steps == 6


def test_each_length_is_compiled_for():
    parts = [
        tuple(array[:rows] for array in batch)
        for batch, rows in zip(lengths(3, 3, 5, 5), (4, 2, 4, 1), strict=True)
    ]
    xla = _check(sequences(), parts, AccumModel)
    compiled = [shapes[0][1] for shapes in xla.stats().compiled_shapes]
    assert compiled == [(4, 3, 4), (4, 5, 4)]
    assert xla.stats().compiled_steps == 8


class Centering(keras.layers.Layer):
    """Takes some of the mean over the rows of a batch away."""

    def call(self, inputs):
        mean = keras.ops.mean(inputs, axis=0, keepdims=True)
        return inputs - 1e-3 * mean


class Scaling(keras.layers.Layer):
    """Multiplies by the number of rows, whatever stands in them."""

    def call(self, inputs):
        rows = keras.ops.shape(inputs)[0]
        return inputs * keras.ops.cast(rows, inputs.dtype) / 10


def _with_layer(make_layer):
    def make(cls, **settings):
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(5, activation="tanh")(inputs)
        outputs = keras.layers.Dense(1)(make_layer(name="applied")(hidden))
        return models.compiled(cls(inputs, outputs, **settings))

    return make


def _with_loss(cls, **settings):
    def mean(y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_true - y_pred))

    return models.regressor(cls, {"loss": mean}, **settings)


class Tracking(keras.layers.Layer):
    """Tracks the mean of what it is given."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.tracker = keras.metrics.Mean(name="level")

    def call(self, inputs):
        self.tracker.update_state(inputs)
        return inputs


@pytest.mark.parametrize(
    "make, cls, reason",
    [
        (
            _with_layer(keras.layers.BatchNormalization),
            keras.Model,
            r"changes variable '\w+' of layer 'applied' \(BatchNormalization\)",
        ),
        (
            _with_layer(Centering),
            AccumModel,
            "the gradient of '.*' depends on what it consists of",
        ),
        (
            _with_layer(Scaling),
            keras.Model,
            "the gradient of '.*' depends on it, by",
        ),
        (_with_loss, keras.Model, "the gradient of '.*' depends on"),
        (_with_layer(Tracking), AccumModel, "the new value of '.*' depends"),
    ],
    ids=["normalization", "mixing", "counting", "loss", "metric"],
)
def test_unequal_padding_falls_back(make, cls, reason, caplog):
    parts = _parts(models.X, models.Y, rows=(10, 7, 10))
    with caplog.at_level(logging.WARNING, "keras_tfopt"):
        xla = _check(make, parts, cls)
    stats = xla.stats()
    assert (stats.successes, stats.failures) == (1, 0)
    assert stats.compiled_steps == 4
    assert [shapes[0][1][0] for shapes in stats.uncompiled_shapes] == [7]
    refused = [r for r in caplog.records if "are not padded" in r.message]
    assert len(refused) == 1
    event = xla.plan_events[-1]
    assert event.step == 0
    assert event.old == event.new
    assert re.search(reason, event.reason)
