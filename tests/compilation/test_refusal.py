"""Operation and layer are found in what XLA really says."""

import keras
import pytest
import tensorflow as tf

from keras_tfopt.compilation.refusal import describe_refusal
from keras_tfopt.compilation.refusal import layer_of


def _refused(function, *arguments):
    compiled = tf.function(function, jit_compile=True, autograph=False)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        compiled(*arguments)
    return caught.value


class Named(keras.layers.Layer):
    def call(self, inputs):
        return tf.strings.length(tf.strings.as_string(inputs))

    def compute_output_shape(self, input_shape):
        return input_shape

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, "int32")


@pytest.mark.parametrize("bad", ["lengths", "lengths_1"])
def test_operation_and_layer_of_a_model(bad):
    names = ["lengths", "lengths_1"]
    inputs = outputs = keras.Input((3,))
    for name in names:
        make = Named if name == bad else keras.layers.Activation
        arguments = {} if name == bad else {"activation": "tanh"}
        outputs = make(name=name, **arguments)(outputs)
    model = keras.Model(inputs, outputs)
    # Names of nodes change from the first trace to the second.
    tf.function(model, autograph=False).get_concrete_function(tf.ones((2, 3)))
    error = _refused(model.__call__, tf.ones((2, 3)))
    refusal = describe_refusal(error, names)
    assert (refusal.operation, refusal.layer) == ("AsString", bad)
    assert str(refusal).startswith(f"operation AsString of layer '{bad}': Det")


def test_a_shape_that_is_too_large():
    def function(x):
        taken = tf.boolean_mask(x, x > 0)
        return tf.reshape(taken, [2])

    refusal = describe_refusal(_refused(function, tf.ones((5,))), [])
    assert refusal.operation == "Reshape"
    assert refusal.text.startswith("Input to reshape is a tensor with 5")


def test_any_error():
    refusal = describe_refusal(ValueError("what\nelse"), ["dense"])
    assert str(refusal) == "the step: what"
    assert str(describe_refusal(ValueError(), [])) == "the step: ValueError"
    long = describe_refusal(ValueError("x" * 900), [])
    assert len(long.text) < 300


@pytest.mark.parametrize(
    "node, expected",
    [
        ("model_1/dense_1/Relu", "dense"),
        ("while/body/_9/while/model_1/dense_2_1/Relu", "dense_2"),
        ("model/block/dense_2/Relu", "dense_2"),
        ("model/block_1/Mul", "block"),
        ("Adam/Mul", None),
        ("dense", None),
        ("model/Softmax", "model"),
    ],
)
def test_layer_of_a_node(node, expected):
    assert layer_of(node, {"model", "dense", "dense_2", "block"}) == expected
