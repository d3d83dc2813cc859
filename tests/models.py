"""Data and models that are small enough to train in every test."""

import functools
import types

import keras
import numpy as np
import tensorflow as tf

from tests.equivalence import run

ROWS = 26
BATCH = 10
_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(ROWS, 4)).astype("float32")
Y = _RNG.normal(size=(ROWS, 1)).astype("float32")
CLASSES = _RNG.integers(0, 3, size=(ROWS,))
WEIGHTS = _RNG.uniform(0.2, 3.0, size=(ROWS,)).astype("float32")


def momentum(learning_rate=0.05):
    return keras.optimizers.SGD(learning_rate, momentum=0.9)


def compiled(model, **kwargs):
    """Compiles a model for regression and returns it."""
    model.compile(
        **{
            "optimizer": momentum(),
            "loss": "mse",
            "weighted_metrics": ["mae"],
            **kwargs,
        }
    )
    return model


def network(cls, **settings):
    """Returns a functional model of `X` and `Y`."""
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(5, activation="tanh")(inputs)
    return cls(inputs, keras.layers.Dense(1)(hidden), **settings)


def regressor(cls, compile_with=None, **settings):
    """Returns a compiled functional model of `X` and `Y`."""
    return compiled(network(cls, **settings), **(compile_with or {}))


def fit(model, x=X, y=Y, **kwargs):
    """Trains two epochs whose last batch is short."""
    if isinstance(x, np.ndarray):
        kwargs = {"batch_size": BATCH, **kwargs}
    defaults = {"epochs": 2, "verbose": 0, "shuffle": False}
    return model.fit(x, y, **{**defaults, **kwargs})


@functools.cache
def stock_outcome():
    """Returns the `Outcome` of stock Keras for `regressor` and `fit`."""
    return run(regressor, fit, keras.Model)


def batches(size=BATCH, *arrays):
    """Returns the batches of arrays, or of `X` and `Y`, as tuples."""
    arrays = arrays or (X, Y)
    return [
        tuple(array[start : start + size] for array in arrays)
        for start in range(0, len(arrays[0]), size)
    ]


def streamed(parts):
    """Returns a dataset of given batches, whose shapes may differ.

    Its length is known: stock Keras counts an update for the batch that it
    misses at the end of a dataset of unknown length.
    """
    signature = tf.nest.map_structure(
        lambda part: tf.TensorSpec([None] * part.ndim, part.dtype), parts[0]
    )
    data = tf.data.Dataset.from_generator(
        lambda: iter(parts), output_signature=signature
    )
    return data.apply(tf.data.experimental.assert_cardinality(len(parts)))


def as_history(logs):
    """Returns dicts of logs in the form of Keras' history."""
    history = {key: [float(log[key]) for log in logs] for key in logs[0]}
    return types.SimpleNamespace(history=history)


class AtBatch(keras.callbacks.Callback):
    """Calls `action(model)` at the end of one batch of an epoch."""

    def __init__(self, batch, action):
        super().__init__()
        self.batch = batch
        self.action = action

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.batch:
            self.action(self.model)


def stop(model):
    model.stop_training = True


class Interruption(Exception):
    """What a test raises in the middle of `fit`."""


def interrupt(model):
    raise Interruption
