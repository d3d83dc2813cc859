"""Sums of gradients keep their kind: dense, sparse, or none at all."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt.accumulation import build_split_step
from keras_tfopt.accumulation import gradients as gradients_lib
from keras_tfopt.accumulation.split import count_rows
from keras_tfopt.accumulation.split import partition_by_size
from tests import builders
from tests.equivalence import assert_equal_training

ROWS, TOKENS, WIDTH = 13, 50, 4


def _slices(values, indices):
    return tf.IndexedSlices(
        tf.constant(values), tf.constant(indices), tf.constant([3, 1])
    )


def _accumulate(variables, parts):
    """Sums lists of gradients in a loop, as a step does."""
    total = gradients_lib.zero_gradients(variables, parts[0])
    carry = gradients_lib.loop_gradients(total, len(parts))
    for index, part in enumerate(parts):
        carry = gradients_lib.add_to_loop(carry, tf.constant(index), part)
    total = gradients_lib.finish_loop(total, carry)
    return gradients_lib.cast_gradients(total, variables)


def test_kinds_are_kept():
    variables = [keras.Variable(np.zeros((3, 1), "float32")) for _ in range(3)]
    dense, sparse, none = _accumulate(
        variables,
        [
            [tf.ones((3, 1)), _slices([[1.0], [2.0]], [0, 2]), None],
            [tf.ones((3, 1)), _slices([[3.0]], [2]), None],
        ],
    )
    np.testing.assert_array_equal(dense, np.full((3, 1), 2.0))
    # Concatenated, as of the whole batch: nothing is merged, nothing dense.
    np.testing.assert_array_equal(sparse.values, [[1.0], [2.0], [3.0]])
    np.testing.assert_array_equal(sparse.indices, [0, 2, 2])
    assert none is None


@pytest.mark.parametrize(
    "dtype, epsilon", [("float16", 1e-3), ("bfloat16", 8e-3)]
)
def test_long_sum_in_half_precision_loses_no_small_terms(dtype, epsilon):
    variable = keras.Variable(np.zeros((1,)), dtype=dtype)
    # Added to one in half precision, it changes nothing.
    small = tf.constant([2e-4], dtype)
    parts = [[tf.constant([1.0], dtype)]] + [[small]] * 1000
    (total,) = _accumulate([variable], parts)
    assert total.dtype == dtype
    np.testing.assert_allclose(float(total[0]), 1.2, rtol=epsilon)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sum_is_as_wide_as_its_variable(dtype):
    variable = keras.Variable(np.zeros((2,)), dtype=dtype)
    (zero,) = gradients_lib.zero_gradients([variable], [tf.zeros((2,), dtype)])
    assert zero.dtype == dtype


def _embedder(optimizer):
    def make_model(cls, **settings):
        layers = [
            keras.layers.Embedding(TOKENS, WIDTH),
            keras.layers.GlobalAveragePooling1D(),
        ]
        inputs = keras.Input((6,), dtype="int32")
        return builders.stack(
            cls, layers, inputs, optimizer=optimizer(), **settings
        )

    return make_model


def _tokens():
    random = np.random.default_rng(0)
    # Many duplicates, within a row and over micro-batches.
    return random.integers(0, 9, size=(ROWS + 4, 6)).astype("int32")


def _fit_tokens(model):
    y = builders.regression_data(ROWS + 4)[1]
    return model.fit(
        _tokens(), y, batch_size=ROWS, epochs=2, shuffle=False, verbose=0
    )


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.SGD(0.5, momentum=0.9),
        # It squares each duplicate by itself, so the slices must be the same.
        lambda: keras.optimizers.Adam(0.05),
        lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.1),
    ],
    ids=["sgd", "adam", "clipped"],
)
def test_embedding_equals_stock(optimizer):
    assert_equal_training(_embedder(optimizer), _fit_tokens, microbatch_size=5)


def _traced_split_step(model):
    spec = (
        tf.TensorSpec((None, 6), tf.int32),
        tf.TensorSpec((None, 1), tf.float32),
    )
    step = build_split_step(model, spec, run_eagerly=False, tracker_weight=1.0)

    def gradients(batch):
        return step(batch, partition_by_size(count_rows(batch), 5)).gradients

    return tf.function(gradients, autograph=False).get_concrete_function(spec)


def _operations_that_make(function, shape):
    """Returns the types of operations with an output of a shape."""
    definition = function.graph.as_graph_def(add_shapes=True)
    nodes = list(definition.node)
    for body in definition.library.function:
        nodes += body.node_def
    return {
        node.op
        for node in nodes
        for output in node.attr["_output_shapes"].list.shape
        if [dimension.size for dimension in output.dim] == list(shape)
    }


def test_no_gradient_of_an_embedding_is_dense():
    model = _embedder(keras.optimizers.SGD)(AccumModel)
    function = _traced_split_step(model)
    gradient = function.structured_outputs[0]
    assert isinstance(gradient, tf.IndexedSlices)
    # The table itself is read and handed on; nothing else is as large.
    passing = {
        "Identity", "PartitionedCall", "Placeholder", "ReadVariableOp",
        "StatefulPartitionedCall", "StatelessWhile", "While",
    }  # fmt: skip
    made = _operations_that_make(function, (TOKENS, WIDTH))
    assert "ReadVariableOp" in made
    assert made <= passing
    # The same look does see the dense sum of another layer.
    assert _operations_that_make(function, (WIDTH, 1)) - passing


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_unused_variable_is_left_alone():
    def make_model(cls, **settings):
        inputs = keras.Input((6,))
        used = keras.layers.Dense(1, name="used")(inputs)
        unused = keras.layers.Dense(1, name="unused")(inputs)
        model = cls(inputs, [used, unused], **settings)
        optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5)
        model.compile(optimizer, ["mse", None])
        return model

    def fit(model):
        x, y = builders.regression_data(ROWS)
        kernel = model.get_layer("unused").kernel
        before = kernel.numpy()
        history = model.fit(
            x, [y, y], batch_size=8, epochs=2, shuffle=False, verbose=0
        )
        np.testing.assert_array_equal(kernel.numpy(), before)
        return history

    assert_equal_training(make_model, fit, microbatch_size=3)


def test_variable_used_in_one_microbatch_counts_as_zero_elsewhere():
    class Gate(keras.layers.Layer):
        """Reaches its weight only for rows whose last feature is positive."""

        def build(self, input_shape):
            self.gain = self.add_weight(shape=(6,), name="gain")

        def call(self, inputs):
            picked = tf.where(inputs[:, -1] > 0)[:, 0]
            update = tf.gather(inputs, picked) * self.gain
            return tf.tensor_scatter_nd_add(inputs, picked[:, None], update)

    def make_model(cls, **settings):
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        return builders.stack(cls, [Gate()], optimizer=optimizer, **settings)

    def fit(model):
        x, y = builders.regression_data(ROWS)
        x[:, -1] = -1.0
        x[6, -1] = 1.0  # In the second of three micro-batches.
        return model.fit(x, y, batch_size=ROWS, epochs=3, verbose=0)

    outcome = assert_equal_training(make_model, fit, microbatch_size=5)
    assert np.all(outcome.model.layers[1].gain.numpy() != 0)
