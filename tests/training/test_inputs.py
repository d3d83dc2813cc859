"""Training equals stock Keras for inputs of any structure and kind."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from tests.equivalence import assert_equal_training
from tests.equivalence import assert_same
from tests.equivalence import run
from tests.models import ROWS
from tests.models import X
from tests.models import Y
from tests.models import compiled
from tests.models import fit
from tests.models import momentum

SPLIT = {"microbatch_size": 4}
LEFT, RIGHT = X[:, :1], X[:, 1:]
LENGTHS = np.arange(ROWS) % 4
RAGGED = tf.RaggedTensor.from_row_lengths(
    np.random.default_rng(2).normal(size=LENGTHS.sum()).astype("float32"),
    LENGTHS,
)
SPARSE = tf.sparse.from_dense(np.where(X > 0, X, 0))


def dataset(*parts):
    return tf.data.Dataset.from_tensor_slices(parts).batch(10)


def joined(inputs):
    """Returns an output that depends on each of two inputs."""
    left, right = inputs
    hidden = keras.layers.Concatenate()(
        [keras.layers.Dense(2)(left), keras.layers.Dense(3)(right)]
    )
    return keras.layers.Dense(1)(hidden)


def functional(make_inputs):
    def make_model(cls, **settings):
        inputs = make_inputs()
        outputs = joined(keras.tree.flatten(inputs))
        return compiled(cls(inputs, outputs, **settings))

    return make_model


def subclassed(read):
    """Returns a builder of models that call `dense(read(inputs))`."""

    def make_model(cls, **settings):
        class Net(cls):
            def __init__(self, **kwargs):
                super().__init__(**kwargs)
                self.dense = keras.layers.Dense(1)

            def call(self, inputs):
                return self.dense(read(inputs))

        return compiled(Net(**settings))

    return make_model


def left():
    return keras.Input((1,), name="left")


def right():
    return keras.Input((3,), name="right")


FUNCTIONAL = {
    "dict": (
        lambda: {"left": left(), "right": right()},
        {"left": LEFT, "right": RIGHT},
    ),
    "list": (lambda: [left(), right()], [LEFT, RIGHT]),
    "nested": (
        lambda: {"a": {"left": left()}, "b": [right()]},
        {"a": {"left": LEFT}, "b": [RIGHT]},
    ),
}


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_structures(name):
    make_inputs, x = FUNCTIONAL[name]

    def train(model):
        return fit(model, x, batch_size=10)

    assert_equal_training(functional(make_inputs), train, **SPLIT)


def test_structures_of_outputs_with_targets_and_weights():
    targets = {"one": Y, "two": (X[:, :2], 2 * Y)}
    weights = {"one": X[:, 0] ** 2, "two": (X[:, 1] ** 2, X[:, 2] ** 2)}
    x = {"left": LEFT, "right": RIGHT}

    def make_model(cls, **settings):
        inputs = {"left": left(), "right": right()}
        hidden = joined(keras.tree.flatten(inputs))
        outputs = {
            "one": keras.layers.Dense(1)(hidden),
            "two": (
                keras.layers.Dense(2)(hidden),
                keras.layers.Dense(1)(hidden),
            ),
        }
        model = cls(inputs, outputs, **settings)
        return compiled(
            model,
            loss={"one": "mse", "two": ("mae", "mse")},
            loss_weights={"one": 0.5, "two": (2.0, 3.0)},
            weighted_metrics=None,
            optimizer=momentum(0.005),
        )

    def train(model):
        return fit(model, dataset(x, targets, weights), None)

    assert_equal_training(make_model, train, **SPLIT)


def test_ragged_rows():
    def read(inputs):
        means = tf.math.divide_no_nan(
            tf.reduce_sum(inputs, axis=1),
            tf.cast(inputs.row_lengths(), tf.float32),
        )
        return means[:, None]

    def train(model):
        return fit(model, dataset(RAGGED, Y), None)

    expected = run(subclassed(read), train, keras.Model)
    for settings in (SPLIT, {}):
        assert_same(
            run(subclassed(read), train, AccumModel, **settings), expected
        )


def test_ragged_rows_next_to_dense_ones():
    def read(inputs):
        sums = tf.reduce_sum(inputs["ragged"], axis=1)
        return tf.concat([inputs["dense"], sums[:, None]], 1)

    def train(model):
        x = {"dense": X, "ragged": RAGGED}
        return fit(model, dataset(x, Y), None)

    assert_equal_training(subclassed(read), train, accumulation_steps=3)


def test_sparse_rows():
    def make_model(cls, **settings):
        inputs = keras.Input((4,), sparse=True)
        outputs = keras.layers.Dense(1)(keras.layers.Dense(3)(inputs))
        return compiled(cls(inputs, outputs, **settings))

    def train(model):
        return fit(model, dataset(SPARSE, Y), None)

    expected = run(make_model, train, keras.Model)
    for settings in (SPLIT, {}):
        assert_same(run(make_model, train, AccumModel, **settings), expected)


def test_inputs_that_are_none():
    def make_model(cls, **settings):
        first = keras.Input((4,), name="first")
        second = keras.Input((4,), name="second", optional=True)
        outputs = _AddIfGiven()(first, second)
        model = cls({"first": first, "second": second}, outputs, **settings)
        return compiled(model)

    def train(model):
        fit(model, {"first": X, "second": None}, batch_size=10, epochs=1)
        fit(model, {"first": X, "second": X[::-1]}, batch_size=10, epochs=1)
        return fit(model, {"first": X, "second": None}, batch_size=10, epochs=1)

    assert_equal_training(make_model, train, **SPLIT)


class _AddIfGiven(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def build(self, first_shape, second_shape=None):
        self.dense.build(first_shape)

    def call(self, first, second=None):
        return self.dense(first if second is None else first + second)

    def compute_output_shape(self, first_shape, second_shape=None):
        return (first_shape[0], 1)


def test_a_scalar_for_each_batch():
    def read(inputs):
        return inputs["data"] * inputs["scale"]

    def train(model):
        data = dataset(X, Y).enumerate()
        data = data.map(
            lambda index, batch: (
                {"data": batch[0], "scale": tf.cast(index + 1, tf.float32)},
                batch[1],
            )
        )
        return fit(model, data, None)

    assert_equal_training(subclassed(read), train, **SPLIT)


def test_a_sparse_table_that_few_rows_read():
    tokens = np.random.default_rng(3).integers(0, 50, size=(ROWS, 3))

    def make_model(cls, **settings):
        inputs = keras.Input((3,), dtype="int32")
        table = keras.layers.Embedding(50, 4)(inputs)
        pooled = keras.layers.GlobalAveragePooling1D()(table)
        outputs = keras.layers.Dense(1)(pooled)
        optimizer = keras.optimizers.SGD(0.1)
        return compiled(cls(inputs, outputs, **settings), optimizer=optimizer)

    def train(model):
        return fit(model, tokens)

    assert_equal_training(make_model, train, **SPLIT)
