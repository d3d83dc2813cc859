"""Training goes on where XLA refuses a step, as if it had never been asked."""

import functools
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from tests import builders
from tests import models
from tests.callbacks.xla_models import boolean_mask
from tests.callbacks.xla_models import check
from tests.callbacks.xla_models import fit_stream
from tests.callbacks.xla_models import lengths
from tests.callbacks.xla_models import maker
from tests.callbacks.xla_models import sequences
from tests.callbacks.xla_models import strings
from tests.callbacks.xla_models import through_numpy
from tests.callbacks.xla_models import unique
from tests.callbacks.xla_models import value_as_shape
from tests.callbacks.xla_models import with_used
from tests.equivalence import assert_same
from tests.equivalence import run

REFUSED = {
    "AsString": strings,
    "PyFuncStateless": through_numpy,
    "Range": value_as_shape,
}


@pytest.mark.parametrize(
    "operation, cls, settings",
    [
        ("AsString", keras.Model, {}),
        ("AsString", AccumModel, {"microbatch_size": 4}),
        ("PyFuncStateless", keras.Model, {}),
        ("PyFuncStateless", AccumModel, {"microbatch_size": 4}),
        # It is not a function of one row, so not the same in parts.
        ("Range", AccumModel, {}),
    ],
)
def test_refused_operations(operation, cls, settings, caplog):
    make = maker(REFUSED[operation])
    reference = run(make, models.fit, keras.Model)
    xla = callbacks.XLACompilation()
    with caplog.at_level(logging.WARNING, "keras_tfopt"):
        outcome = run(make, with_used(models.fit, xla), cls, **settings)
    assert_same(outcome, reference)
    stats = xla.stats()
    assert (stats.failures, stats.successes, stats.success_ratio) == (1, 0, 0)
    assert [e.new.jit_compile for e in xla.plan_events] == [True, False]
    failed = [r for r in caplog.records if "failed under XLA" in r.message]
    assert len(failed) == 1
    assert f"operation {operation} of layer 'applied'" in failed[0].message


@pytest.mark.parametrize("function", [unique, boolean_mask])
def test_dynamic_shapes(function):
    # Whether XLA takes them or not is its own affair.
    check(maker(function), callbacks.XLACompilation(), cls=keras.Model)


def test_several_steps_in_a_call():
    xla = callbacks.XLACompilation()
    check(maker(through_numpy, steps_per_execution=2), xla, cls=keras.Model)
    assert xla.stats().failures == 1


def _refused_when_long(x):
    """Takes 60 values, of what XLA only knows how many there may be."""
    flat = tf.reshape(x, [-1])
    count = 60 + tf.cast(0 * flat[0], tf.int32)
    taken = tf.boolean_mask(flat, tf.range(tf.size(flat)) < count)
    return tf.reduce_mean(tf.reshape(taken, [60]))


@pytest.mark.parametrize("cls", [keras.Model, AccumModel])
def test_refused_at_a_later_batch(cls):
    xla = callbacks.XLACompilation()
    parts = lengths(3, 3, 3, 7, 3)
    check(sequences(_refused_when_long), xla, fit_stream(parts), cls)
    stats = xla.stats()
    assert (stats.successes, stats.failures) == (1, 1)
    assert stats.compiled_steps == 3
    on, off = xla.plan_events
    assert (on.step, off.step) == (0, 3)
    assert off.seconds > 0


def _user_error(x):
    """What fails for long sequences, under XLA for another reason."""
    with tf.control_dependencies([tf.debugging.assert_less(tf.shape(x)[1], 7)]):
        return _refused_when_long(tf.identity(x))


def test_a_users_error_surfaces_as_it_is():
    xla = callbacks.XLACompilation()
    model = sequences(_user_error)(AccumModel)
    fit = fit_stream(lengths(3, 7))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        fit(model, callbacks=[xla])
    assert "assertion failed" in str(caught.value)
    assert "XLA" not in str(caught.value)
    assert int(model.optimizer.iterations) == 1
    # It was no fault of XLA, which is used again.
    fit_stream(lengths(3, 3))(model, callbacks=[xla])
    assert xla.stats().compiled_steps == 3


class Words(AccumModel):
    """Reads lists of words, whose lengths differ."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.lookup = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(["a", "b"], [1.0, 2.0]), 0.5
        )
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        values = tf.ragged.map_flat_values(self.lookup.lookup, inputs)
        mean = tf.reduce_mean(values, axis=1, keepdims=True)
        return self.dense(tf.ensure_shape(mean, (None, 1)))


def test_ragged_strings():
    words = tf.ragged.constant([["a"], ["b", "c"], ["b"], ["c", "a"]] * 2)
    targets = tf.reshape(tf.range(8.0), (8, 1))
    data = tf.data.Dataset.from_tensor_slices((words, targets)).batch(4)

    def fit(model, **kwargs):
        return models.fit(model, data, None, **kwargs)

    class StockWords(Words, keras.Model):
        make_train_function = keras.Model.make_train_function

    xla = callbacks.XLACompilation()
    expected = run(lambda: models.compiled(StockWords()), fit)
    outcome = run(lambda: models.compiled(Words()), with_used(fit, xla))
    assert_same(outcome, expected)
    assert xla.stats().failures == 1


def test_ragged_numbers():
    values = tf.ragged.constant([[1.0], [2.0, 3.0], [4.0], [5.0, 6.0]] * 2)
    targets = tf.reshape(tf.range(8.0), (8, 1))
    data = tf.data.Dataset.from_tensor_slices((values, targets)).batch(4)

    def make():
        inputs = keras.Input((None,), ragged=True)
        outputs = keras.layers.Dense(1)(Mean()(inputs))
        return models.compiled(keras.Model(inputs, outputs))

    class Mean(keras.layers.Layer):
        def call(self, inputs):
            return tf.reduce_mean(inputs, axis=1, keepdims=True)

        def compute_output_shape(self, input_shape):
            return (None, 1)

    def fit(model, **kwargs):
        return models.fit(model, data, None, **kwargs)

    xla = callbacks.XLACompilation()
    assert_same(run(make, with_used(fit, xla)), run(make, fit))


class Memory:
    """Room for some rows; more of them raise what an allocator raises."""

    def __call__(self, array):
        if len(array) > 4:
            raise MemoryError("no room")


@pytest.mark.parametrize("is_first", [True, False])
def test_recovers_from_out_of_memory_after_a_refusal(is_first):
    def make(cls, room=lambda array: None):
        inputs = keras.Input((4,))
        hidden = builders.Probe(room)(keras.layers.Dense(5)(inputs))
        return models.compiled(cls(inputs, keras.layers.Dense(1)(hidden)))

    xla = callbacks.XLACompilation()
    recovery = callbacks.OOMRecovery(grow_after=None)
    used = [xla, recovery] if is_first else [recovery, xla]
    expected = run(make, models.fit, keras.Model)
    outcome = run(
        make, with_used(models.fit, *used), keras.Model, room=Memory()
    )
    assert_same(outcome, expected)
    plans = [event.new for event in recovery.plan_events]
    assert [plan.jit_compile for plan in plans] == [True, False, False, False]
    assert [plan.microbatch_size for plan in plans] == [None, None, 5, 2]


def test_switching_on_again_after_a_failure():
    xla = callbacks.XLACompilation()
    again = models.AtBatch(1, lambda model: xla.switch("on"))
    check(maker(strings), xla, cls=keras.Model)
    model = maker(strings)(keras.Model)
    models.fit(model, epochs=1, callbacks=[xla, again])
    assert xla.stats().failures == 2


class Undeclared(keras.layers.Layer):
    """Declares that XLA cannot compile it."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_jit = False

    def call(self, inputs):
        return inputs


def _undeclared(cls):
    inputs = keras.Input((4,))
    layer = Undeclared(name="dynamic")
    model = cls(inputs, keras.layers.Dense(1)(layer(inputs)))
    return models.compiled(model)


@pytest.mark.parametrize(
    "make, settings, reason",
    [
        (_undeclared, {}, "layer 'dynamic' declares"),
        (models.regressor, {"gather_steps": 2}, "gather_steps"),
        (
            lambda cls: models.regressor(cls, {"run_eagerly": True}),
            {},
            "eagerly",
        ),
    ],
    ids=["layer", "gathered", "eager"],
)
def test_models_that_xla_is_not_asked_for(make, settings, reason, caplog):
    xla = callbacks.XLACompilation()
    make = functools.partial(make, AccumModel, **settings)
    expected = run(make, models.fit)
    with caplog.at_level(logging.WARNING, "keras_tfopt"):
        outcome = run(make, with_used(models.fit, xla))
    assert_same(outcome, expected)
    assert xla.stats().attempts == 0
    assert reason in caplog.text


def test_own_train_step_is_refused():
    class Own(AccumModel):
        def train_step(self, data):
            return super().train_step(data)

    model = models.compiled(models.network(Own))
    with pytest.raises(ValueError, match="Own.train_step.*compute_loss"):
        models.fit(model, callbacks=[callbacks.XLACompilation()])


def test_what_is_dropped_is_said_and_seen_in_checked_steps(caplog):
    def check(x):
        return tf.debugging.check_numerics(tf.reduce_mean(x), "not a number")

    x = np.array(models.X)
    x[-1] = np.nan
    fit = functools.partial(
        models.fit, x=x, y=models.Y, batch_size=13, epochs=4
    )
    unchecked = maker(check)(AccumModel)
    xla = callbacks.XLACompilation(compile_short_batches=True)
    with caplog.at_level(logging.WARNING, "keras_tfopt"):
        fit(unchecked, callbacks=[xla])
    assert int(unchecked.optimizer.iterations) == 8
    assert caplog.text.count("CheckNumerics of layer 'applied'") == 1
    checked = maker(check)(AccumModel)
    xla = callbacks.XLACompilation(check_every=4)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not a number"):
        fit(checked, callbacks=[xla])
    assert int(checked.optimizer.iterations) == 3
    assert xla.stats().compiled_steps == 3
