"""Checks that XLA drops are found where they stand, and nowhere else."""

import keras
import pytest
import tensorflow as tf

from keras_tfopt.compilation.checks import dropped_checks


class Guarded(keras.layers.Layer):
    def call(self, inputs):
        with tf.control_dependencies([tf.debugging.assert_less(inputs, 9.0)]):
            return tf.debugging.check_numerics(inputs, "message")


def _checks(layer, dtype):
    inputs = keras.Input((3,), dtype=dtype)
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs)))
    model = keras.Model(inputs, outputs)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x))
        return tape.gradient(loss, model.trainable_variables)

    graph = step.get_concrete_function(tf.TensorSpec((None, 3), dtype)).graph
    return dropped_checks(graph, {model.name, *(x.name for x in model.layers)})


@pytest.mark.parametrize(
    "layer, dtype, expected",
    [
        (lambda: keras.layers.Dense(2, name="a"), "float32", ()),
        # It gathers from shapes.
        (
            lambda: keras.Sequential(
                [keras.layers.RepeatVector(2), keras.layers.Dense(2)], name="a"
            ),
            "float32",
            (),
        ),
        (
            lambda: Guarded(name="a"),
            "float32",
            ("Assert of layer 'a'", "CheckNumerics of layer 'a'"),
        ),
        (
            lambda: keras.layers.Embedding(5, 2, name="a"),
            "int32",
            ("GatherV2 of layer 'a'",),
        ),
    ],
)
def test_dropped_checks(layer, dtype, expected):
    assert _checks(layer(), dtype) == expected


def test_xla_drops_them():
    function = tf.function(
        lambda x: tf.debugging.check_numerics(x, "message"), jit_compile=True
    )
    assert tf.math.is_nan(function(tf.constant(float("nan"))))
