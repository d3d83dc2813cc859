"""Training that is killed and started again ends as if it never was."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import callbacks
from tests import models
from tests.equivalence import Outcome
from tests.equivalence import assert_same
from tests.equivalence import state_of

EPOCHS = 3
BATCHES = 7
ROWS = 4 * BATCHES - 1
_RNG = np.random.default_rng(1)
X = _RNG.normal(size=(ROWS, 4)).astype("float32")
Y = _RNG.normal(size=(ROWS, 1)).astype("float32")


class Noise(keras.layers.Layer):
    """Draws from a seed generator of its own."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(5)

    def call(self, inputs, training=None):
        if not training:
            return inputs
        shape = keras.ops.shape(inputs)
        return inputs + 0.1 * keras.random.normal(shape, seed=self.seeds)


def network(cls, compile_with=None, **settings):
    """A model with all kinds of state, which an interrupted step changes."""
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(6, activation="tanh")(Noise()(inputs))
    hidden = keras.layers.BatchNormalization()(hidden)
    hidden = keras.layers.Dropout(0.3)(hidden)
    model = cls(inputs, keras.layers.Dense(1)(hidden), **settings)
    model.compile(
        **{
            "optimizer": keras.optimizers.Adam(0.05),
            "loss": "mse",
            "metrics": ["mae"],
            **(compile_with or {}),
        }
    )
    return model


def batched():
    return tf.data.Dataset.from_tensor_slices((X, Y))


DATA = {
    "arrays": lambda: (X, Y),
    "shuffled": lambda: batched().shuffle(10, seed=3).batch(4).prefetch(2),
    "shuffled without a seed": lambda: batched().shuffle(10).batch(4),
    "repeated": lambda: batched().shuffle(30, seed=3).batch(4).repeat(),
    "unknown length": lambda: (
        batched().filter(lambda x, y: x[0] > -0.5).shuffle(9, seed=1).batch(2)
    ),
    "generator": lambda: models.streamed(models.batches(4, X, Y)),
    "random map": lambda: (
        batched()
        .batch(4)
        .map(lambda x, y: (x + tf.random.normal(tf.shape(x), seed=2), y))
    ),
    "random variables": lambda: batched().batch(4).map(_variable_noise()),
}


def _variable_noise():
    generator = tf.random.Generator.from_seed(3)
    return lambda x, y: (x + generator.normal(tf.shape(x)), y)


def fit(model, data="arrays", extra=(), **kwargs):
    data = DATA[data]() if isinstance(data, str) else data
    x, y = data if isinstance(data, tuple) else (data, None)
    if y is not None:
        kwargs.setdefault("batch_size", 4)
    else:
        kwargs["shuffle"] = False
    others = [
        keras.callbacks.EarlyStopping("loss", patience=9,
                                      restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=0.2),
    ]  # fmt: skip
    return model.fit(
        x,
        y,
        **{
            "epochs": EPOCHS,
            "verbose": 0,
            "validation_data": (X[:5], Y[:5]),
            "callbacks": [*extra, *others],
            **kwargs,
        },
    )


def fresh(make, seed=0):
    """What a process starts with."""
    keras.utils.clear_session()
    if seed is not None:
        keras.utils.set_random_seed(seed)
    return make()


def undisturbed(make, **kwargs):
    model = fresh(make)
    history = fit(model, **kwargs)
    return Outcome(model, history.history, state_of(model))


class Kill(keras.callbacks.Callback):
    """Raises after a number of steps of the process."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def on_train_batch_end(self, batch, logs=None):
        self.steps -= 1
        if self.steps == 0:
            raise models.Interruption


def disturbed(make, folder, kills, save_freq=1, before=(), **kwargs):
    """Trains, killed and started anew after numbers of steps."""
    steps = []
    for kill in [*kills, None]:
        model = fresh(make)
        backup = callbacks.BackupAndRestore(folder, save_freq)
        count = keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda batch, logs: steps.append(batch)
        )
        extra = [*before, backup, count]
        if kill is None:
            history = fit(model, extra=extra, **kwargs)
            return Outcome(model, history.history, state_of(model)), steps
        with pytest.raises(models.Interruption):
            fit(model, extra=[*extra, Kill(kill)], **kwargs)


def assert_identical(outcome, expected):
    assert_same(outcome, expected, tolerance=0)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("data", DATA)
def test_equals_an_undisturbed_run(data, tmp_path):
    kwargs = {"data": data}
    if data == "repeated":
        kwargs["steps_per_epoch"] = 5

    def make():
        return network(keras.Model)

    expected = undisturbed(make, **kwargs)
    # In the first epoch, in the second, and in the last.
    outcome, steps = disturbed(make, tmp_path / "b", (3, 8, 7), **kwargs)
    assert_identical(outcome, expected)
    assert not (tmp_path / "b").exists()
