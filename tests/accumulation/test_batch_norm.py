"""Moving statistics of a split batch: those of the whole batch, once a step."""

import keras
import numpy as np
import pytest

from keras_tfopt import AccumModel
from keras_tfopt.accumulation.batch_norm import Moments
from keras_tfopt.accumulation.batch_norm import empty_moments
from keras_tfopt.accumulation.batch_norm import merge_moments
from tests import builders
from tests.equivalence import assert_equal_training

MOMENTUM = 0.9
# Micro-batches of 5, 5 and 3 rows.
ROWS, MICROBATCH_SIZE = 13, 5


def _layer(**kwargs):
    return keras.layers.BatchNormalization(momentum=MOMENTUM, **kwargs)


def _expected(batches, axis=-1):
    """Returns the statistics after steps over batches, by their definition."""
    mean, variance = 0.0, 1.0
    for batch in batches:
        values = np.moveaxis(batch.astype("float64"), axis, -1)
        values = values.reshape((-1, values.shape[-1]))
        mean = mean * MOMENTUM + values.mean(0) * (1 - MOMENTUM)
        variance = variance * MOMENTUM + values.var(0) * (1 - MOMENTUM)
    return mean, variance


def _assert_statistics(layer, expected, tolerance=1e-6):
    mean, variance = expected
    for actual, wanted in (
        (layer.moving_mean, mean),
        (layer.moving_variance, variance),
    ):
        np.testing.assert_allclose(
            actual.numpy(), wanted, rtol=tolerance, atol=tolerance
        )


def _fit_split(layer, x, y, batch_size=ROWS):
    model = builders.stack(
        AccumModel,
        [layer],
        keras.Input(x.shape[1:]),
        microbatch_size=MICROBATCH_SIZE,
    )
    model.fit(x, y, batch_size=batch_size, epochs=2, shuffle=False, verbose=0)


@pytest.mark.parametrize(
    "shape, axis", [((6,), -1), ((3, 3, 2), -1), ((2, 3, 3), 1)], ids=str
)
def test_statistics_are_those_of_the_whole_batches(shape, axis):
    x, y = builders.regression_data(ROWS + 4, shape)
    layer = _layer(axis=axis)
    _fit_split(layer, x, y)
    _assert_statistics(layer, _expected([x[:ROWS], x[ROWS:]] * 2, axis))


def test_large_mean_costs_no_digits():
    x, y = builders.regression_data(ROWS)
    x += 1000.0
    layer = _layer()
    _fit_split(layer, x, y)
    # The mean of a micro-batch is itself rounded, to 6e-5. Differences of
    # sums of squares would be off by 6e-2.
    _assert_statistics(layer, _expected([x, x]), tolerance=1e-5)


def test_masked_values_do_not_count():
    x, y = builders.regression_data(ROWS, (4, 6))
    lengths = np.arange(ROWS) % 4 + 1
    lengths[5:10] = 0  # A micro-batch without any value.
    mask = np.arange(4) < lengths[:, None]
    x[~mask] = 0.0
    layer = _layer()
    model = builders.stack(
        AccumModel,
        [keras.layers.Masking(), layer, keras.layers.GlobalAveragePooling1D()],
        keras.Input((4, 6)),
        microbatch_size=MICROBATCH_SIZE,
    )
    model.fit(x, y, batch_size=ROWS, epochs=2, verbose=0)
    _assert_statistics(layer, _expected([x[mask]] * 2))


def test_layer_shared_by_two_branches_is_updated_twice():
    x, y = builders.regression_data(ROWS)
    layer = _layer()
    first, second = keras.Input((6,)), keras.Input((6,))
    merged = keras.layers.add([layer(first), layer(second)])
    model = AccumModel(
        [first, second],
        keras.layers.Dense(1)(merged),
        microbatch_size=MICROBATCH_SIZE,
    )
    model.compile("sgd", "mse")
    model.fit([x, 3 * x + 1], y, batch_size=ROWS, verbose=0)
    _assert_statistics(layer, _expected([x, 3 * x + 1]))


def test_layer_in_nested_model_and_half_precision():
    x, y = builders.regression_data(ROWS)
    layer = _layer(dtype="mixed_bfloat16")
    _fit_split(keras.Sequential([keras.Input((6,)), layer]), x, y)
    # The layer sees its inputs in half precision.
    seen = keras.ops.cast(keras.ops.cast(x, "bfloat16"), "float32")
    _assert_statistics(layer, _expected([np.array(seen)] * 2))


def _frozen():
    layer = _layer()
    layer.trainable = False
    return layer


class InferenceNorm(keras.layers.Layer):
    """Calls a BatchNormalization in inference mode while training."""

    def __init__(self):
        super().__init__()
        self.norm = _layer()

    def call(self, inputs):
        return self.norm(inputs, training=False)


def _builder(make_layer):
    def make_model(cls, **settings):
        layers = [keras.layers.Dense(6), make_layer()]
        return builders.stack(cls, layers, **settings)

    return make_model


def _fit(model):
    x, y = builders.regression_data(ROWS + 5)
    return model.fit(x, y, batch_size=ROWS, epochs=2, shuffle=False, verbose=0)


@pytest.mark.parametrize("make_layer", [_frozen, InferenceNorm])
def test_layer_without_batch_moments_equals_stock(make_layer):
    outcome = assert_equal_training(
        _builder(make_layer), _fit, microbatch_size=MICROBATCH_SIZE
    )
    means = [
        value
        for path, value in outcome.variables.items()
        if path.endswith("moving_mean")
    ]
    assert len(means) == 1
    assert not means[0].any()


@pytest.mark.parametrize("make_layer", [_layer, lambda: _layer(synchronized=1)])
def test_one_microbatch_equals_stock(make_layer):
    assert_equal_training(_builder(make_layer), _fit, accumulation_steps=1)


class OwnNorm(keras.layers.BatchNormalization):
    """Overrides what it does with its moments."""

    def call(self, inputs, training=None, mask=None):
        return 2 * super().call(inputs, training=training, mask=mask)


class RenamedNorm(keras.layers.BatchNormalization):
    """Overrides nothing that matters."""


@pytest.mark.parametrize(
    "make_layer, description",
    [
        (lambda: _layer(renorm=True, name="norm"), "BatchNormalization"),
        (lambda: OwnNorm(name="norm"), "OwnNorm"),
    ],
    ids=["renorm", "subclass"],
)
def test_other_normalization_is_refused_by_name(make_layer, description):
    try:
        layer = make_layer()
    except (TypeError, ValueError) as error:
        pytest.skip(f"This Keras has no such layer: {error}")
    model = _builder(lambda: layer)(AccumModel, microbatch_size=5)
    expected = rf"'moving_mean' of layer 'norm' \({description}\)"
    with pytest.raises(ValueError, match=expected):
        _fit(model)


def test_subclass_with_stock_behavior_is_merged():
    x, y = builders.regression_data(ROWS)
    layer = RenamedNorm(momentum=MOMENTUM)
    _fit_split(layer, x, y)
    _assert_statistics(layer, _expected([x, x]))


def _moments(values):
    mean = values.mean(0)
    squares = np.square(values - mean).sum(0)
    return Moments(*map(keras.ops.convert_to_tensor, (
        np.float32(len(values)), mean, squares
    )))  # fmt: skip


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_merge_moments_of_parts_are_those_of_the_whole(offset):
    random = np.random.default_rng(0)
    values = (random.normal(size=(11, 3)) + offset).astype("float32")
    merged = empty_moments(_moments(values))
    for part in np.split(values, [1, 4, 9]):
        merged = merge_moments(merged, _moments(part))
    merged = merge_moments(merged, empty_moments(merged))
    exact = values.astype("float64")
    assert float(merged.count) == 11
    np.testing.assert_allclose(merged.mean, exact.mean(0), rtol=1e-6)
    np.testing.assert_allclose(
        merged.squares, exact.var(0) * 11, rtol=1e-6 if not offset else 1e-4
    )


def test_merge_moments_of_nothing_is_nothing():
    empty = empty_moments(_moments(np.ones((2, 3), "float32")))
    for part in merge_moments(empty, empty):
        assert not np.any(part)
