"""A model's own step goes on with parts of a batch, when that is asked for."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import OutOfMemoryError
from keras_tfopt import callbacks
from tests import builders
from tests import models
from tests.equivalence import assert_same
from tests.equivalence import run
from tests.equivalence import unchanged


class OwnStep:
    """A step as people write it, with a state that Keras does not know."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(
            zip(gradients, self.trainable_variables, strict=True)
        )
        self.calls.assign_add(1)
        return self.compute_metrics(x, y, self(x, training=False))

    def test_step(self, data):
        x, y = data
        return self.compute_metrics(x, y, self(x, training=False))


class Own(OwnStep, keras.Model):
    """Plain Keras model with its own steps."""


class OwnAccum(OwnStep, AccumModel):
    """`AccumModel` with its own steps."""


class Memory:
    """Room for some rows."""

    rows = None

    def __call__(self, array):
        if self.rows is not None and len(array) > self.rows:
            raise MemoryError("no room")


def network(cls, memory, **compile_with):
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(5, activation="tanh")(inputs)
    hidden = keras.layers.BatchNormalization()(hidden)
    hidden = keras.layers.Dropout(0.3, seed=1)(hidden)
    hidden = builders.Probe(memory)(hidden)
    model = cls(inputs, keras.layers.Dense(1)(hidden))
    model.calls = tf.Variable(0, name="calls")
    return models.compiled(
        model, metrics=["mae"], weighted_metrics=None, **compile_with
    )


def fit(*callback, rows=None, memory=None, **kwargs):
    def train(model):
        if memory is not None:
            memory.rows = rows
        return models.fit(model, callbacks=list(callback), **kwargs)

    return train


def parts(model):
    """Trains stock Keras on the parts that a run with room for 5 makes."""
    pieces = []
    for x, y in models.batches():
        for start in range(0, len(x), 5):
            pieces.append((x[start : start + 5], y[start : start + 5]))
    return models.fit(model, models.streamed(pieces), None)


@pytest.mark.parametrize("cls", [Own, OwnAccum])
@pytest.mark.parametrize("steps", [1, 2])
def test_equals_stock_keras_on_the_parts(cls, steps):
    memory = Memory()
    expected = run(lambda: network(Own, memory), parts)
    recovery = callbacks.OOMRecovery(half_batches=True, grow_after=None)
    with pytest.warns(UserWarning, match="own.*update of its own") as caught:
        outcome = run(
            lambda: network(cls, memory, steps_per_execution=steps),
            fit(recovery, rows=5, memory=memory),
        )
    assert len(caught) == 1
    assert_same(outcome, expected)
    assert int(outcome.model.calls) == int(expected.model.calls) == 12
    sizes = [event.new.microbatch_size for event in recovery.plan_events]
    assert sizes == [5]


def test_without_a_failure_nothing_differs():
    memory = Memory()
    expected = run(lambda: network(Own, memory), fit())
    recovery = callbacks.OOMRecovery(half_batches=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcome = run(lambda: network(Own, memory), fit(recovery))
    assert_same(outcome, expected)
    assert recovery.plan_events == ()


@pytest.mark.filterwarnings("ignore:.*step of its own")
def test_no_way_on_leaves_no_trace():
    memory = Memory()
    model = network(Own, memory)
    models.fit(model)
    model.reset_metrics()
    memory.rows = 1
    recovery = callbacks.OOMRecovery(min_microbatch_size=3, half_batches=True)
    with unchanged(model), pytest.raises(OutOfMemoryError, match="10, 5, 3"):
        models.fit(model, callbacks=[recovery])
    calls = int(model.calls)
    memory.rows = None
    models.fit(model)
    assert int(model.calls) == calls + 6


@pytest.mark.filterwarnings("ignore:.*step of its own")
def test_validation_with_its_own_step():
    memory = Memory()
    model = network(Own, memory)
    wanted = model.evaluate(models.X, models.Y, verbose=0, return_dict=True)
    memory.rows = 7
    recovery = callbacks.OOMRecovery(half_batches=True)
    found = model.evaluate(
        models.X, models.Y, verbose=0, return_dict=True, callbacks=[recovery]
    )
    np.testing.assert_allclose(found["mae"], wanted["mae"], rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "compile_with", "message"),
    [
        ({}, {}, "Own.train_step.*half_batches=True"),
        ({"half_batches": True}, {"run_eagerly": True}, "run_eagerly=False"),
        (
            {"half_batches": True, "plan_ahead": True},
            {},
            "Expected: plan_ahead=False",
        ),
    ],
    ids=str,
)
def test_refusals(arguments, compile_with, message):
    model = network(Own, Memory(), **compile_with)
    with pytest.raises(ValueError, match=message):
        models.fit(model, callbacks=[callbacks.OOMRecovery(**arguments)])
