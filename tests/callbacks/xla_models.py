"""Models that XLA refuses or not, and how tests train them."""

import keras
import numpy as np
import tensorflow as tf

from keras_tfopt import AccumModel
from tests import models
from tests.equivalence import assert_same
from tests.equivalence import run


class Apply(keras.layers.Layer):
    """Adds the value of a function of TensorFlow to its inputs."""

    def __init__(self, function, **kwargs):
        super().__init__(**kwargs)
        self.function = function

    def call(self, inputs):
        return inputs + self.function(inputs)

    def compute_output_shape(self, input_shape):
        return input_shape


def unique(x):
    """Returns how many different values there are."""
    values, _ = tf.unique(tf.reshape(tf.cast(x * 2, tf.int32), [-1]))
    return tf.cast(tf.size(values), tf.float32) / 10


def boolean_mask(x):
    """Returns the mean of the positive values."""
    return tf.reduce_mean(tf.boolean_mask(x, x > 0))


def strings(x):
    """Returns the lengths of values as text, which XLA knows not."""
    return tf.cast(tf.strings.length(tf.strings.as_string(x)), tf.float32) / 10


def through_numpy(x):
    """Passes values through NumPy."""
    y = tf.numpy_function(np.tanh, [x], tf.float32, stateful=False)
    return tf.stop_gradient(tf.ensure_shape(y, x.shape))


def value_as_shape(x):
    """Returns what has as many entries as values are positive."""
    count = tf.reduce_sum(tf.cast(x > 0, tf.int32))
    return tf.reduce_mean(tf.cast(tf.range(count + 1), tf.float32))


def maker(function, **compile_with):
    """Returns a function that makes a model that applies another."""

    def make(cls, **settings):
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(5, activation="tanh")(inputs)
        hidden = Apply(function, name="applied")(hidden)
        model = cls(inputs, keras.layers.Dense(1)(hidden), **settings)
        return models.compiled(model, **compile_with)

    return make


def with_used(fit, *used):
    """Returns a function that trains with callbacks."""
    return lambda model: fit(model, callbacks=list(used))


def check(make, xla, fit=models.fit, cls=AccumModel, **settings):
    """Compares a run with XLA to stock Keras without, and returns it."""
    expected = run(make, fit, keras.Model)
    outcome = run(make, with_used(fit, xla), cls, **settings)
    assert_same(outcome, expected)
    return outcome


def lengths(*lengths, rows=4):
    """Returns batches of sequences of given lengths."""
    random = np.random.default_rng(0)
    return [
        (
            random.normal(size=(rows, length, 4)).astype("float32"),
            random.normal(size=(rows, 1)).astype("float32"),
        )
        for length in lengths
    ]


def sequences(function=None):
    """Returns a function that makes a model of sequences."""

    def make(cls, **settings):
        inputs = keras.Input((None, 4))
        hidden = keras.layers.Dense(5, activation="tanh")(inputs)
        if function is not None:
            hidden = Apply(function, name="applied")(hidden)
        hidden = keras.layers.GlobalAveragePooling1D()(hidden)
        model = cls(inputs, keras.layers.Dense(1)(hidden), **settings)
        return models.compiled(model)

    return make


def fit_stream(parts):
    """Returns a function that trains an epoch of given batches."""
    return lambda model, **kwargs: models.fit(
        model, models.streamed(parts), None, epochs=1, **kwargs
    )
