"""A function that is computed again for its gradient is the same function."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import remat
from keras_tfopt.training.remat import remove_remat

COUNTER = tf.Variable(0.0, trainable=False)
X = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")


def gradients_of(function, variables, inputs=X, training=True):
    """Returns value and gradients of a loss, computed in one graph."""

    @tf.function(autograph=False)
    def run(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(function(inputs)))
        return loss, tape.gradient(loss, [v.value for v in variables])

    loss, gradients = run(tf.constant(inputs))
    return [tf.convert_to_tensor(x).numpy() for x in (loss, *gradients)]


def assert_equal(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def dropped_out():
    keras.utils.set_random_seed(0)
    dense = keras.layers.Dense(8)
    dropout = keras.layers.Dropout(0.5, seed=1)
    dense.build((None, 3))
    return lambda x: dropout(dense(x), training=True), dense


def test_masks_are_those_of_the_first_call_unlike_those_of_keras():
    function, dense = dropped_out()
    expected = gradients_of(function, dense.variables)
    function, dense = dropped_out()
    assert_equal(gradients_of(remat(function), dense.variables), expected)
    # The reason for this package's own.
    function, dense = dropped_out()
    stock = gradients_of(keras.remat(function), dense.variables)
    assert np.max(np.abs(stock[1] - expected[1])) > 1.0


def test_the_function_is_called_again():
    calls = []

    def function(x):
        calls.append(x)
        return x * variable

    variable = keras.Variable(np.ones(3, "float32"))
    gradients_of(remat(function), [variable])
    assert len(calls) == 2
    # The second call waits for the gradient.
    waits_for = calls[1].op.control_inputs
    assert waits_for
    assert all("gradient_tape" in op.name for op in waits_for)


def test_gradients_reach_what_a_function_takes_past_its_arguments():
    weight = keras.Variable(np.ones((3, 2), "float32"))

    def function(recompute):
        def run(x):
            scale = tf.exp(weight.value)
            block = recompute(lambda x: tf.matmul(x, scale) * 2.0)
            return block(x)

        return run

    expected = gradients_of(function(lambda block: block), [weight])
    assert_equal(gradients_of(function(remat), [weight]), expected)


def test_nests_keywords_and_tensors_that_have_no_gradient():
    weight = keras.Variable(np.ones((4, 2), "float32"))

    def block(tensors, *, scale, name):
        assert name == "block"
        taken = tf.gather(weight.value, tensors["ids"])
        return {"sum": taken * scale, "ids": tensors["ids"], "none": None}

    def run(block):
        def function(x):
            ids = tf.constant([0, 1, 1])
            found = block({"ids": ids, "x": x}, scale=2.0, name="block")
            assert found["none"] is None
            return found["sum"] + tf.cast(found["ids"][:, None], "float32")

        return gradients_of(function, [weight])

    assert_equal(run(remat(block)), run(block))


def test_a_gradient_of_rows_stays_one():
    embedding = keras.layers.Embedding(50, 4)
    embedding.build()
    block = remat(lambda ids: embedding(ids))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(block(tf.constant([[1, 2, 2]])))
    gradient = tape.gradient(loss, embedding.embeddings.value)
    assert isinstance(gradient, tf.IndexedSlices)
    assert gradient.indices.numpy().tolist() == [1, 2, 2]


def test_masks_of_keras_go_in_and_out():
    embedding = keras.layers.Embedding(9, 4, mask_zero=True)
    lstm = keras.layers.LSTM(3)
    tokens = np.array([[1, 2, 0], [3, 0, 0]])
    for layer, inputs in ((embedding, tokens), (lstm, embedding(tokens))):
        layer(inputs)

    def run(first, second):
        function = first(lambda x: embedding(tf.cast(x, "int32")))
        pooled = second(lambda x: lstm(x))
        variables = [*embedding.variables, *lstm.trainable_variables]
        return gradients_of(lambda x: pooled(function(x)), variables, tokens)

    def plain(function):
        return function

    expected = run(plain, plain)
    assert_equal(run(remat, remat), expected)
    assert_equal(run(plain, remat), expected)
    # Without masks it would be something else.
    embedding.mask_zero = False
    embedding.supports_masking = False
    assert abs(run(plain, plain)[0] - expected[0]) > 1e-6


def test_blocks_in_blocks():
    def function(recompute, layers):
        def inner(x):
            return layers[2](layers[1](x), training=True)

        def outer(x):
            return layers[3](recompute(inner)(layers[0](x)))

        return recompute(outer)

    def run(recompute):
        keras.utils.set_random_seed(0)
        layers = [
            keras.layers.Dense(4, activation="tanh"),
            keras.layers.Dense(4, activation="tanh"),
            keras.layers.Dropout(0.5, seed=3),
            keras.layers.Dense(2),
        ]
        block = function(recompute, layers)
        block(X)
        kernels = [layers[i].kernel for i in (0, 1, 3)]
        return gradients_of(block, kernels)

    assert_equal(run(remat), run(lambda block: block))


def test_a_weight_that_the_forward_pass_overwrites_has_two_sources():
    def run(recompute):
        keras.utils.set_random_seed(0)
        layer = keras.layers.SpectralNormalization(keras.layers.Dense(4))
        layer.build((None, 3))
        block = recompute(lambda x: layer(x, training=True))
        before = [v.numpy() for v in layer.variables]
        found = gradients_of(block, layer.trainable_variables)
        after = [v.numpy() for v in layer.variables]
        assert any((a != b).any() for a, b in zip(before, after, strict=True))
        return [*found, *after]

    assert_equal(run(remat), run(lambda block: block))


def test_losses_of_layers_in_a_function_are_refused():
    layer = keras.layers.Dense(2, activity_regularizer="l2")
    with pytest.raises(ValueError, match=r"remat\(layer\)"):
        remat(lambda x: layer(x))(tf.constant(X))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x + tf.random.normal((5, 3)), "hidden generator"),
        (
            lambda x: tf.while_loop(
                lambda x: tf.reduce_sum(x) < 0,
                lambda x: x * tf.random.uniform(()),
                (x,),
            )[0],
            "hidden generator",
        ),
        (
            lambda x: tf.ensure_shape(
                tf.numpy_function(lambda x: x, [x], tf.float32), (5, 3)
            ),
            "Python function",
        ),
        (lambda x: COUNTER.assign_add(1.0) * x, "past Keras"),
    ],
)
def test_what_would_not_be_the_same_again_is_refused(function, message):
    with pytest.raises(ValueError, match=f"{message}.*SeedGenerator"):
        gradients_of(remat(function), [])


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="Received: target=3"):
        remat(3)


def test_a_function_keeps_its_name_and_a_layer_its_place():
    def block(x):
        """Returns it."""
        return x

    assert remat(block).__name__ == "block"
    assert remat(block).__doc__ == block.__doc__
    layer = keras.layers.Dense(2)
    assert remat(layer) is layer
    assert "call" in vars(layer)
    remove_remat(layer)
    remove_remat(layer)
    assert "call" not in vars(layer)
