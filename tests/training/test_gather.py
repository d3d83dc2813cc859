"""Gathered batches train like one stock batch made of all of them."""

import keras
import numpy as np
import pytest

from keras_tfopt import AccumModel
from tests.equivalence import assert_same
from tests.equivalence import run
from tests.equivalence import unchanged
from tests.models import WEIGHTS
from tests.models import AtBatch
from tests.models import Interruption
from tests.models import X
from tests.models import Y
from tests.models import batches
from tests.models import compiled
from tests.models import fit
from tests.models import interrupt
from tests.models import regressor
from tests.models import stock_outcome
from tests.models import stop
from tests.models import streamed


def gathered(train, make_model=regressor, gather_steps=2, **settings):
    return run(
        make_model, train, AccumModel, gather_steps=gather_steps, **settings
    )


def small_batches(model, **kwargs):
    """Trains with six batches of five rows; the last one has a single row."""
    return fit(model, batch_size=5, **kwargs)


@pytest.mark.parametrize(
    "compile_with", [None, {"run_eagerly": True}], ids=["graph", "eager"]
)
def test_equals_the_batch_made_of_them(compile_with):
    actual = gathered(small_batches, compile_with=compile_with)
    assert_same(actual, stock_outcome())
    assert int(actual.model.optimizer.iterations) == 6


def test_the_rest_of_an_epoch_makes_an_update():
    def make_model(cls, **settings):
        loss = keras.losses.MeanSquaredError("mean_with_sample_weight")
        return regressor(cls, {"loss": loss}, **settings)

    def train(size):
        return lambda model: fit(
            model,
            batch_size=size,
            sample_weight=WEIGHTS,
            validation_data=(X[:7], Y[:7]),
        )

    expected = run(make_model, train(20), keras.Model)
    actual = gathered(train(5), make_model, 4, accumulation_steps=3)
    assert_same(actual, expected)
    assert int(actual.model.optimizer.iterations) == 4


def test_more_steps_than_an_epoch_has_batches():
    expected = run(
        regressor, lambda model: fit(model, batch_size=26), keras.Model
    )
    assert_same(gathered(small_batches, gather_steps=50), expected)


def test_steps_per_epoch_over_an_infinite_dataset():
    parts = batches(5)[:5]
    # Epochs of three go on where the one before stopped; windows do not.
    windows = [(0, 2), (2, 3), (3, 5), (0, 1), (1, 3), (3, 4)]
    stock_parts = [
        tuple(np.concatenate(p) for p in zip(*parts[a:b], strict=True))
        for a, b in windows
    ]

    def train(parts, steps):
        return lambda model: fit(
            model,
            streamed(parts).repeat(),
            None,
            steps_per_epoch=steps,
            epochs=3,
        )

    expected = run(regressor, train(stock_parts, 2), keras.Model)
    assert_same(gathered(train(parts, 3)), expected)


def test_several_steps_per_execution():
    actual = gathered(small_batches, compile_with={"steps_per_execution": 4})
    assert_same(actual, stock_outcome())


def test_stopping_within_a_window():
    def train_stock(model):
        fit(model, streamed([(X[:10], Y[:10]), (X[10:15], Y[10:15])]), None,
            epochs=1)  # fmt: skip
        return fit(model)

    def train(model):
        small_batches(model, callbacks=[AtBatch(2, stop)])
        assert int(model.optimizer.iterations) == 2
        return small_batches(model)

    expected = run(regressor, train_stock, keras.Model)
    assert_same(gathered(train), expected)


def test_nothing_is_carried_over_an_exception():
    def train(model):
        with pytest.raises(Interruption):
            small_batches(model, callbacks=[AtBatch(0, interrupt)])
        assert int(model.optimizer.iterations) == 0
        return small_batches(model)

    assert_same(gathered(train), stock_outcome())


def test_evaluating_within_a_window():
    def evaluate(model):
        before = int(model.optimizer.iterations)
        model.evaluate(X[:8], Y[:8], verbose=0)
        assert int(model.optimizer.iterations) == before

    def train(batch, size):
        return lambda model: fit(
            model,
            batch_size=size,
            validation_data=(X[:7], Y[:7]),
            callbacks=[AtBatch(batch, evaluate)],
        )

    # Between two updates, and before the one at the end of the epoch.
    for gather_steps, batch in ((2, 2), (4, 5)):
        expected = run(regressor, train(0, 5 * gather_steps), keras.Model)
        actual = gathered(train(batch, 5), gather_steps=gather_steps)
        assert_same(actual, expected)


def padded(parts, length):
    """Joins batches of sequences, padded with what `Masking` skips."""
    sequences = [
        np.pad(x, [(0, 0), (0, length - x.shape[1]), (0, 0)]) for x, _ in parts
    ]
    targets = [
        np.pad(y, [(0, 0), (0, length - y.shape[1]), (0, 0)]) for _, y in parts
    ]
    return np.concatenate(sequences), np.concatenate(targets)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("settings", [{}, {"microbatch_size": 2}], ids=str)
def test_different_rows_lengths_and_masks(settings):
    rng = np.random.default_rng(4)
    parts = []
    for rows, length in ((5, 3), (2, 7), (4, 2), (1, 5), (6, 4)):
        sequence = rng.normal(size=(rows, length, 4)).astype("float32")
        sequence[0, 1:] = 0
        parts.append((sequence, sequence[..., :1] ** 2 + 1))
    # A batch that is padding and nothing else counts for nothing.
    parts[3] = (0 * parts[3][0], parts[3][1])
    stock_parts = [padded(parts[:3], 7), padded(parts[3:], 7)]

    def make_model(cls, **settings):
        inputs = keras.Input((None, 4))
        hidden = keras.layers.Masking()(inputs)
        hidden = keras.layers.Dense(5, activation="tanh")(hidden)
        outputs = keras.layers.Dense(1)(hidden)
        # Keras' metrics weight a token by the padded length of its batch.
        return compiled(cls(inputs, outputs, **settings), weighted_metrics=None)

    def train(parts):
        return lambda model: fit(model, streamed(parts), None)

    expected = run(make_model, train(stock_parts), keras.Model)
    actual = gathered(train(parts), make_model, 3, **settings)
    assert_same(actual, expected)
    assert int(actual.model.optimizer.iterations) == 4


def test_batch_norm_statistics_are_those_of_the_window():
    def make_model(cls, **settings):
        inputs = keras.Input((4,))
        hidden = keras.layers.BatchNormalization(momentum=0.5)(inputs)
        outputs = keras.layers.Dense(1)(hidden)
        return compiled(cls(inputs, outputs, **settings))

    def statistics(outcome):
        return {
            path.split("/")[-1]: value
            for path, value in outcome.variables.items()
            if "/moving_" in path
        }

    expected = statistics(run(make_model, fit, keras.Model))
    actual = statistics(gathered(small_batches, make_model, microbatch_size=2))
    assert expected.keys() == {"moving_mean", "moving_variance"}
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=0, atol=1e-6)


def test_train_on_batch_makes_one_update():
    def train(model):
        for part in batches(10):
            model.train_on_batch(*part)

    expected = run(regressor, train, keras.Model)
    actual = gathered(train, gather_steps=3)
    assert_same(actual, expected)
    assert int(actual.model.optimizer.iterations) == 3


def test_a_batch_that_is_refused_changes_nothing():
    model = regressor(AccumModel, gather_steps=2)
    model.train_on_batch(X, Y)
    model.reset_metrics()
    with unchanged(model):
        with pytest.raises(ValueError, match="x: 4, y: 3"):
            fit(model, streamed([(X[:4], Y[:4]), (X[:4], Y[:3])]), None)
