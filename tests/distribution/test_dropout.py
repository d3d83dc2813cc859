"""Dropout per example: the same in any parts, and random."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import distribution
from keras_tfopt.rows import RowPosition
from keras_tfopt.rows import rows_at
from tests import models
from tests.equivalence import assert_same
from tests.equivalence import run


def network(cls, **settings):
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(5, activation="tanh")(inputs)
    hidden = distribution.PerExampleDropout(0.4, seed=3)(hidden)
    return models.compiled(
        cls(inputs, keras.layers.Dense(1)(hidden), **settings),
        optimizer=keras.optimizers.Adam(0.05),
    )


@pytest.fixture(scope="module")
def stock():
    return run(network, models.fit, keras.Model)


@pytest.mark.parametrize(
    "settings",
    [{}, {"accumulation_steps": 4}, {"microbatch_size": 3}],
    ids=str,
)
def test_parts_of_a_batch_draw_what_the_whole_draws(settings, stock):
    actual = run(network, models.fit, AccumModel, **settings)
    # Stock Keras counts calls, which we do not.
    assert_same(actual, stock, ignore=("seed_generator",))


def test_gathered_batches_draw_what_the_whole_draws():
    def train(model, size):
        models.fit(model, models.X[:24], models.Y[:24], batch_size=size)

    expected = run(network, lambda model: train(model, 12), keras.Model)
    actual = run(
        network,
        lambda model: train(model, 6),
        AccumModel,
        gather_steps=2,
        microbatch_size=4,
    )
    assert_same(actual, expected, ignore=("seed_generator",))


def masks(rows=400, width=50, step=0, first=0, rate=0.3, seed=5):
    """Returns which values are kept."""
    layer = distribution.PerExampleDropout(rate, seed=seed)
    with rows_at(RowPosition(step, first)):
        outputs = layer(tf.ones((rows, width)), training=True).numpy()
    kept = outputs != 0
    np.testing.assert_allclose(outputs[kept], 1 / (1 - rate), rtol=1e-6)
    return kept


@pytest.mark.parametrize("width", [1, 4, 7])
def test_mask_of_a_row_does_not_depend_on_the_others(width):
    whole = masks(10, width, step=2)
    np.testing.assert_array_equal(masks(3, width, 2, first=4), whole[4:7])


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_share_of_dropped_values(rate):
    kept = masks(rate=rate)

    def assert_fair(shares, count):
        deviation = np.sqrt(rate * (1 - rate) / count)
        # Of hundreds of shares one may be four deviations off.
        assert np.max(np.abs(shares - (1 - rate))) < 5 * deviation

    assert_fair(kept.mean(), kept.size)
    assert_fair(kept.mean(axis=0), kept.shape[0])
    assert_fair(kept.mean(axis=1), kept.shape[1])


@pytest.mark.parametrize(
    "other",
    [
        {"step": 1},
        {"step": 2**31},
        {"seed": 6},
        {"first": 1},
        {"first": 400},
    ],
    ids=str,
)
def test_masks_are_independent(other):
    kept = masks(rate=0.5)
    correlation = np.corrcoef(kept.ravel(), masks(rate=0.5, **other).ravel())
    assert abs(correlation[0, 1]) < 5 / np.sqrt(kept.size)


def test_values_of_a_mask_are_independent():
    kept = masks(rate=0.5)
    for one, other in [
        (kept[:, :-1], kept[:, 1:]),
        (kept[:, :-4], kept[:, 4:]),
        (kept[:-1], kept[1:]),
    ]:
        correlation = np.corrcoef(one.ravel(), other.ravel())[0, 1]
        assert abs(correlation) < 5 / np.sqrt(one.size)


def test_masks_under_xla_do_not_depend_on_the_parts_either():
    layer = distribution.PerExampleDropout(0.5, seed=1)

    @tf.function(jit_compile=True)
    def drop(rows, first):
        with rows_at(RowPosition(3, first)):
            return layer(rows, training=True)

    whole = drop(tf.ones((8, 6)), tf.constant(0))
    part = drop(tf.ones((4, 6)), tf.constant(4))
    np.testing.assert_array_equal(part, whole[4:])


def test_does_nothing_outside_of_training():
    x = tf.ones((3, 4))
    assert distribution.PerExampleDropout(0.5)(x) is x
    assert distribution.PerExampleDropout(0.0)(x, training=True) is x


def test_config():
    layer = distribution.PerExampleDropout(0.5, name="drop")
    copy = type(layer).from_config(layer.get_config())
    assert (copy.rate, copy.seed, copy.name) == (0.5, layer.seed, "drop")


@pytest.mark.parametrize(
    "arguments", [{"rate": 1.0}, {"rate": 0.5, "seed": -1}], ids=str
)
def test_invalid(arguments):
    with pytest.raises(ValueError, match="Invalid value.*Expected"):
        distribution.PerExampleDropout(**arguments)
