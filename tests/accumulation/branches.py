"""Models with one branch per loss, so that one training compares many.

Branches share no weights: what is wrong in one stays in one, and the path of
the variable that differs names it.
"""

import keras
import numpy as np

ROWS = 17
BATCH = 10
STEPS = 5
CLASSES = 3
REDUCTIONS = ("sum_over_batch_size", "mean", "mean_with_sample_weight", "sum")


def normal(*shape):
    """Returns normal random numbers, the same in each test."""
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def uniform(*shape, low=0.2, high=3.0):
    """Returns uniform random numbers, for weights and positive targets."""
    numbers = np.random.default_rng(1).uniform(low, high, size=shape)
    return numbers.astype("float32")


def classes(*shape):
    """Returns random class numbers."""
    return np.random.default_rng(2).integers(0, CLASSES, size=shape)


def one_hot(*shape):
    """Returns random one-hot vectors."""
    return np.eye(CLASSES, dtype="float32")[classes(*shape)]


def trainer(x, y, sample_weight=None, batch_size=BATCH, **kwargs):
    """Returns a function that fits arrays, in two epochs of unequal batches."""

    def fit(model):
        return model.fit(
            x, y, sample_weight=sample_weight, batch_size=batch_size,
            epochs=2, shuffle=False, verbose=0, **kwargs,
        )  # fmt: skip

    return fit


def dense_branches(
    cls, inputs, names, *, hidden=None, activation=None, **settings
):
    """Makes a model with a dense layer and an output for each name.

    Args:
        cls: Class of the model.
        inputs: Keras input.
        names: Names of the outputs.
        hidden: What the branches start from. Defaults to `inputs`.
        activation: Activation of the outputs.
        **settings: Settings of the model.
    """
    hidden = inputs if hidden is None else hidden
    outputs = {
        name: keras.layers.Dense(CLASSES, activation=activation, name=name)(
            hidden
        )
        for name in names
    }
    return cls(inputs, outputs, **settings)


def single(compile_model, shape=(4,), units=CLASSES):
    """Returns a builder of a model with one output.

    Args:
        compile_model: Callable that compiles the model.
        shape: Shape of an example.
        units: Width of the output.
    """

    def make_model(cls, **settings):
        inputs = keras.Input(shape)
        hidden = keras.layers.Dense(5, activation="tanh")(inputs)
        model = cls(inputs, keras.layers.Dense(units)(hidden), **settings)
        compile_model(model)
        return model

    return make_model
