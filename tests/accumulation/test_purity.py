"""Finding in a graph what it does past Keras, and that our steps do nothing."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt.accumulation import Effects
from keras_tfopt.accumulation import build_split_step
from keras_tfopt.accumulation import build_whole_step
from keras_tfopt.accumulation.purity import find_effects
from keras_tfopt.accumulation.split import count_rows
from keras_tfopt.accumulation.split import partition_by_size
from tests import builders

COUNTER = tf.Variable(0.0, name="counter")
VECTOR = tf.Variable(tf.zeros((4,)), name="vector")


@pytest.fixture(scope="module")
def table():
    initializer = tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2])
    return tf.lookup.StaticHashTable(initializer, 0)


def _effects(function, *specs):
    traced = tf.function(function, autograph=False)
    return find_effects(traced.get_concrete_function(*specs))


def _add_one(index=0):
    COUNTER.assign_add(1.0)
    return index + 1


def _in_cond():
    return tf.cond(COUNTER > 1.0, _add_one, lambda: 0)


def _in_while():
    return tf.while_loop(lambda index: index < 2, _add_one, (0,))


def _in_switch():
    return tf.switch_case(tf.cast(COUNTER, tf.int32), [lambda: 0, _add_one])


def _in_function():
    return tf.function(_add_one, autograph=False)()


def _in_function_of_while_of_cond():
    def body(index):
        _in_cond()
        return (index + 1,)

    def loop():
        return tf.while_loop(lambda index: index < 2, body, (0,))

    return tf.function(loop, autograph=False)()


@pytest.mark.parametrize(
    "function",
    [
        _add_one,
        lambda: COUNTER.assign(2.0),
        _in_cond,
        _in_switch,
        _in_while,
        _in_function,
        _in_function_of_while_of_cond,
    ],
    ids=[
        "assign_add", "assign", "cond", "switch", "while", "function", "all",
    ],
)  # fmt: skip
def test_write_is_found_wherever_it_stands(function):
    effects = _effects(function)
    assert effects.writes == ("counter:0",)
    assert [v is COUNTER for v in effects.variables] == [True]
    assert len(effects.writers) == 1


def test_scatter_is_a_write():
    effects = _effects(
        lambda: VECTOR.scatter_add(
            tf.IndexedSlices(tf.ones(1), tf.constant([2]))
        )
    )
    assert effects.writes == ("vector:0",)


def test_two_writes_of_one_variable_are_one():
    def function():
        _add_one()
        VECTOR.assign(tf.ones((4,)))
        _add_one()

    assert _effects(function).writes == ("counter:0", "vector:0")


def test_writer_tells_where_it_stands():
    def function():
        with tf.name_scope("some_layer"):
            _add_one()

    (writer,) = _effects(function).writers
    assert writer.startswith("some_layer/")


def _read():
    return (
        COUNTER
        + tf.gather(VECTOR, [1, 2])[0]
        + tf.cast(tf.size(VECTOR), "float32")
    )


def _read_in_function():
    return tf.function(_read, autograph=False)()


def _read_in_loop():
    return tf.while_loop(
        lambda value: value < 1.0, lambda value: (value + _read(),), (-2.0,)
    )


@pytest.mark.parametrize("function", [_read, _read_in_function, _read_in_loop])
def test_read_is_not_a_write(function):
    assert _effects(function) == Effects()


def test_table_lookup_is_not_a_write(table):
    keys = tf.TensorSpec((None,), tf.string)
    nested = tf.function(table.lookup)

    def in_cond(values):
        return tf.cond(
            tf.size(values) > 1,
            lambda: nested(values),
            lambda: tf.zeros_like(values, tf.int32),
        )

    for function in (table.lookup, nested, in_cond):
        assert _effects(function, keys) == Effects()


def test_table_insertion_is_a_write():
    mutable = tf.lookup.experimental.MutableHashTable(tf.string, tf.int32, 0)

    def insert():
        mutable.insert(["a"], [1])

    assert len(_effects(insert).writes) == 1
    assert len(_effects(tf.function(insert)).writes) == 1


@pytest.mark.parametrize(
    "function, operation",
    [
        (lambda: tf.random.normal((2,)), "RandomStandardNormal"),
        (lambda: tf.random.uniform((2,)), "RandomUniform"),
        (lambda: tf.random.shuffle([1, 2]), "RandomShuffle"),
        (
            lambda: tf.random.log_uniform_candidate_sampler(
                [[1]], 1, 2, True, 9
            )[0],
            "LogUniformCandidateSampler",
        ),
        (
            lambda: tf.cond(
                COUNTER > 0.0,
                lambda: tf.random.truncated_normal((2,)),
                lambda: tf.zeros((2,)),
            ),
            "TruncatedNormal",
        ),
    ],
)
def test_hidden_generator_is_named(function, operation):
    assert _effects(function) == Effects(random_ops=(operation,))


def test_seeded_numbers_are_no_effect():
    assert (
        _effects(lambda: tf.random.stateless_normal((2,), [1, 2])) == Effects()
    )


@pytest.mark.parametrize("is_nested", [False, True])
def test_python_function_is_named_unless_declared_stateless(is_nested):
    def effects(call):
        return _effects(tf.function(call) if is_nested else call).python_ops

    values = tf.ones((2,))
    for stateful, count in ((True, 1), (False, 0)):
        found = effects(
            lambda stateful=stateful: tf.numpy_function(
                np.sin, [values], tf.float32, stateful=stateful
            )
        )
        assert len(found) == count
    found = effects(lambda: tf.py_function(np.sin, [values], tf.float32))
    assert len(found) == 1


def _model(**settings):
    return builders.stack(
        AccumModel,
        [
            keras.layers.Embedding(9, 4, mask_zero=True),
            keras.layers.LSTM(4, kernel_regularizer="l2"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3, activity_regularizer="l2"),
        ],
        keras.Input((5,), dtype="int32"),
        optimizer="adam",
        metrics=["mae", keras.metrics.AUC()],
        **settings,
    )


SPEC = (
    tf.TensorSpec((None, 5), tf.int32),
    tf.TensorSpec((None, 1), tf.float32),
)


def test_whole_step_writes_nothing():
    step, effects = build_whole_step(_model(), SPEC, run_eagerly=False)
    assert effects == Effects()
    assert _effects(step, SPEC) == Effects()


def test_split_step_writes_nothing():
    step = build_split_step(
        _model(), SPEC, run_eagerly=False, tracker_weight=1.0
    )

    def run(batch):
        return step(batch, partition_by_size(count_rows(batch), 2))

    assert _effects(run, SPEC) == Effects()


def test_commit_is_what_writes():
    model = _model(accumulation_steps=2)
    before = [weight.numpy() for weight in model.trainable_variables]
    x = np.random.default_rng(0).integers(1, 9, size=(8, 5))
    model.train_on_batch(x, np.zeros((8, 1)))
    for weight, value in zip(model.trainable_variables, before, strict=True):
        assert np.any(weight.numpy() != value), weight.path
