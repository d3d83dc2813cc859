"""A step that fails on one replica leaves no trace on any."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from tests import models
from tests.builders import Fault
from tests.builders import Probe
from tests.distribution.replicated.strategies import all_parts
from tests.distribution.replicated.strategies import under
from tests.equivalence import assert_same
from tests.equivalence import run


class SecondReplica(Probe):
    """A `Probe` on the second replica only."""

    def call(self, inputs):
        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            return inputs
        index = tf.get_static_value(context.replica_id_in_sync_group)
        return super().call(inputs) if index == 1 else inputs


def network(cls, forward=None, backward=None, **settings):
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(5, activation="tanh")(inputs)
    hidden = SecondReplica(forward, backward)(hidden)
    return models.compiled(
        cls(inputs, keras.layers.Dense(1)(hidden), **settings),
        optimizer=keras.optimizers.Adam(0.01),
    )


def fit(model, **kwargs):
    # Batches of 10, 10 and 5 rows: stock Keras cannot build itself on parts of
    # a first batch that differ.
    arrays = models.X[:25], models.Y[:25]
    return models.fit(model, *arrays, epochs=1, **kwargs)


def state_of_replicas(model):
    return all_parts(
        model,
        [
            *model.variables,
            *model.optimizer.variables,
            *model.metrics_variables,
        ],
    )


class Short:
    """Has memory for some rows only."""

    def __init__(self, rows):
        self.rows = rows
        self.refused = []

    def __call__(self, array):
        if len(array) > self.rows:
            self.refused.append(len(array))
            raise MemoryError("injected")


def test_memory_that_is_short_on_one_replica(strategy):
    short = Short(1)
    recovery = callbacks.OOMRecovery()

    def train(model):
        return fit(model, callbacks=[recovery])

    def make(cls, **settings):
        return network(cls, short, **settings)

    expected = run(network, fit, keras.Model)
    assert_same(run(under(strategy, make), train, keras.Model), expected)
    # Parts of 5 rows: 2 rows at a time, then 1, on both.
    assert short.refused == [5, 2]
    sizes = [event.new.microbatch_size for event in recovery.plan_events]
    assert sizes == [2, 1]


@pytest.mark.parametrize(
    ("role", "place"),
    [("train", "backward"), ("test", "forward")],
)
def test_failed_step_leaves_no_trace(strategy, role, place):
    fault = Fault()
    batch = models.X[:9], models.Y[:9]
    with strategy.scope():
        model = network(AccumModel, **{place: fault})
    model.train_on_batch(*batch)
    guard = getattr(model, f"make_{role}_function")()
    guard(iter([batch]))
    before = state_of_replicas(model)
    fault.arm()
    with pytest.raises(Exception, match="injected"):
        guard(iter([batch]))
    for actual, expected in zip(state_of_replicas(model), before, strict=True):
        np.testing.assert_array_equal(actual, expected)
    fault.disarm()
    guard(iter([batch]))


def test_infinite_gradients_are_refused(strategy, tmp_path):
    x = models.X.copy()
    x[16] = np.inf

    def make(cls, **settings):
        return models.regressor(cls, **settings)

    def train(model):
        rollback = callbacks.NonFiniteRollback(report_path=tmp_path / "bad")
        history = models.fit(model, x=x, epochs=1, callbacks=[rollback])
        assert [event["batch"] for event in rollback.events] == [1]
        return history

    expected = run(make, train, keras.Model)
    assert_same(run(under(strategy, make), train, AccumModel), expected)


def test_interrupted_training_is_restored(strategy, tmp_path):
    def make(cls, **settings):
        inputs = keras.Input((4,))
        hidden = keras.layers.BatchNormalization()(inputs)
        hidden = keras.layers.Dropout(0.3, seed=3)(hidden)
        model = cls(inputs, keras.layers.Dense(1)(hidden), **settings)
        return models.compiled(model, optimizer=keras.optimizers.Adam(0.05))

    def train(model, *extra):
        data = tf.data.Dataset.from_tensor_slices((models.X, models.Y))
        data = data.shuffle(26, seed=3).batch(9)
        return models.fit(model, data, None, epochs=1, callbacks=[*extra])

    def interrupted(model):
        with pytest.raises(models.Interruption):
            train(
                model,
                callbacks.BackupAndRestore(tmp_path, save_freq=1),
                models.AtBatch(1, models.interrupt),
            )

    made = under(strategy, make)
    expected = run(made, train, AccumModel)
    run(made, interrupted, AccumModel)
    backup = callbacks.BackupAndRestore(tmp_path, save_freq=1)
    # Replicas share the sums of metrics in other parts.
    actual = run(made, lambda model: train(model, backup), AccumModel)
    assert_same(actual, expected)


def test_what_xla_compiles_is_counted(strategy):
    xla = callbacks.XLACompilation("on")

    def train(model):
        return fit(model, callbacks=[xla])

    def make(cls, **settings):
        return models.regressor(cls, **settings)

    expected = run(make, fit, keras.Model)
    assert_same(run(under(strategy, make), train, keras.Model), expected)
    assert xla.stats().compiled_steps == 2
    assert "train, compiled" in xla.report()
    assert xla.stats().fusion.fusions > 0


def test_what_xla_refuses_runs_without(strategy):
    xla = callbacks.XLACompilation("on")

    def train(model):
        return fit(model, callbacks=[xla])

    expected = run(network, fit, keras.Model)

    def make(cls, **settings):
        # XLA takes no Python functions.
        return network(cls, lambda array: None, **settings)

    assert_same(run(under(strategy, make), train, keras.Model), expected)
    assert [event.new.jit_compile for event in xla.plan_events] == [True, False]
