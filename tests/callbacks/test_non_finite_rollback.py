"""Bad steps leave no trace, and a run goes on as if without their batches."""

import json
import logging
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import TrainingDivergedError
from keras_tfopt import callbacks
from tests import models
from tests.equivalence import assert_same
from tests.equivalence import run
from tests.equivalence import unchanged

BATCH = 5
COUNT = 8
_RNG = np.random.default_rng(2)
X = _RNG.normal(size=(BATCH * COUNT, 4)).astype("float32")
Y = X[:, :1] * 2 + 1


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def data(bad=(), value=np.nan, without=()):
    """Batches, of which some are bad and some left out."""
    parts = []
    for index, (x, y) in enumerate(models.batches(BATCH, X, Y)):
        if index in bad:
            y = y.copy()
            y[2] = value
        if index not in without:
            parts.append((x, y))
    return models.streamed(parts)


def report(path):
    return json.loads(pathlib.Path(path).read_text())


def network(cls, compile_with=None, **settings):
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(5, activation="tanh")(inputs)
    hidden = keras.layers.BatchNormalization()(hidden)
    model = cls(inputs, keras.layers.Dense(1)(hidden), **settings)
    model.compile(
        **{
            "optimizer": keras.optimizers.Adam(0.01),
            "loss": "mse",
            "metrics": ["mae"],
            **(compile_with or {}),
        }
    )
    return model


def fit(dataset, *extra, **kwargs):
    return lambda model: models.fit(
        model, dataset, None, callbacks=list(extra), **kwargs
    )


MODELS = {
    "plain": (keras.Model, {}, {}),
    "eager": (keras.Model, {"run_eagerly": True}, {}),
    "steps per execution": (keras.Model, {"steps_per_execution": 3}, {}),
    "accumulating": (AccumModel, {}, {"microbatch_size": 2}),
    "compiled": (AccumModel, {"jit_compile": True}, {}),
}


@pytest.mark.parametrize("cls, compiled, settings", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_equals_a_run_without_the_bad_batches(
    cls, compiled, settings, value, caplog
):
    bad = (0, 3, 7)
    expected = run(network, fit(data(without=bad)), cls, compiled, **settings)
    guard = callbacks.NonFiniteRollback(max_bad_batches=6)
    with caplog.at_level(logging.WARNING, "keras_tfopt"):
        outcome = run(
            network, fit(data(bad, value), guard), cls, compiled, **settings
        )
    assert_same(outcome, expected)
    assert int(outcome.model.optimizer.iterations) == 2 * (COUNT - 3)
    expected_batches = [0, 3, 7] if "steps" not in str(compiled) else [0, 3, 6]
    assert [event["batch"] for event in guard.events] == 2 * expected_batches
    assert [event["epoch"] for event in guard.events] == [0] * 3 + [1] * 3
    assert report("bad_batches.json") == guard.events
    assert len(caplog.records) == 6
    assert "the batch is left out" in caplog.text


def test_gathered_windows_are_left_out_as_a_whole():
    expected = run(network, fit(data(without=(2, 3))), AccumModel,
                   gather_steps=2)  # fmt: skip
    guard = callbacks.NonFiniteRollback()
    outcome = run(network, fit(data((3,)), guard), AccumModel, gather_steps=2)
    assert_same(outcome, expected)


def test_costs_nothing_when_all_is_well():
    for kwargs in ({}, {"spike_factor": 50.0, "warmup": 3}):
        expected = run(network, fit(data()), keras.Model)
        guard = callbacks.NonFiniteRollback(**kwargs)
        assert_same(run(network, fit(data(), guard), keras.Model), expected)
        assert guard.events == []
        assert not tf.io.gfile.exists("bad_batches.json")


def test_spikes(caplog):
    spiking = data((5,), 1e4)
    guard = callbacks.NonFiniteRollback(spike_factor=20, warmup=4, window=10)
    expected = run(network, fit(data(without=(5,))), keras.Model)
    with caplog.at_level(logging.WARNING, "keras_tfopt"):
        outcome = run(network, fit(spiking, guard), keras.Model)
    assert_same(outcome, expected)
    assert [event["batch"] for event in guard.events] == [5, 5]
    assert all(e["loss"] > e["loss_limit"] for e in guard.events)
    assert "global_clipnorm" in caplog.text
    # What comes before there is something to judge by passes.
    late = callbacks.NonFiniteRollback(spike_factor=20, warmup=100)
    run(network, fit(spiking, late), keras.Model)
    assert late.events == []


def test_the_step_s_own_loss_is_what_is_judged():
    guard = callbacks.NonFiniteRollback()
    outcome = run(network, fit(data(), guard, epochs=1), keras.Model)
    losses = guard._gate.history.numpy()[0]
    losses = losses[np.isfinite(losses)]
    assert len(losses) == COUNT
    np.testing.assert_allclose(
        losses.mean(), outcome.history["loss"][0], rtol=1e-5
    )


def test_infinite_gradients_of_a_finite_loss():
    class Pole(keras.losses.Loss):
        def call(self, y_true, y_pred):
            # Its derivative at 0 is infinite.
            return tf.sqrt(tf.abs(y_pred - tf.stop_gradient(y_pred)) + y_true)

    make = {"loss": Pole()}
    x = np.ones((4, 4), "float32")
    model = network(keras.Model, make)
    guard = callbacks.NonFiniteRollback()
    models.fit(model, x, np.ones((4, 1)), epochs=1)
    model.reset_metrics()
    with unchanged(model):
        models.fit(model, x, np.zeros((4, 1)), epochs=1, callbacks=[guard])
    (event,) = guard.events
    assert event["loss"] == 0
    assert event["gradient_norm"] in ("inf", "nan")


def test_loss_scaling_goes_its_own_way():
    def make(cls):
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.01), initial_scale=1e38
        )
        return network(cls, {"optimizer": optimizer})

    guard = callbacks.NonFiniteRollback()
    expected = run(make, fit(data()), keras.Model)
    assert_same(run(make, fit(data(), guard), keras.Model), expected)
    assert guard.events == []
    outcome = run(make, fit(data((2,)), guard), keras.Model)
    assert [event["batch"] for event in guard.events] == [2, 2]
    assert np.isfinite(outcome.history["loss"]).all()


def test_too_many():
    guard = callbacks.NonFiniteRollback(max_bad_batches=2,
                                        report_path="report.json")  # fmt: skip
    model = network(keras.Model)
    message = "3 bad batches.*loss nan.*at most 2.*report.json.*learning rate"
    with pytest.raises(TrainingDivergedError, match=message):
        fit(data((1, 2, 4)), guard)(model)
    assert int(model.optimizer.iterations) == 2
    assert [e["batch"] for e in report("report.json")] == [1, 2, 4]
    # Keras' own step is back.
    with pytest.warns(UserWarning, match="ran out of data"):
        fit(data((1,)).filter(lambda x, y: True), epochs=1)(model)
    assert not np.isfinite(model.get_weights()[0]).all()


def test_good_steps_are_forgiving():
    guard = callbacks.NonFiniteRollback(max_bad_batches=1, forget_after=2)
    run(network, fit(data((0, 3)), guard), keras.Model)
    assert len(guard.events) == 4


@pytest.mark.parametrize("scheduled", [False, True])
def test_rollback(scheduled, tmp_path, caplog):
    rate = 0.01
    if scheduled:
        rate = keras.optimizers.schedules.ExponentialDecay(0.01, 10, 0.9)
    weights = {}

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            weights[batch] = [w.copy() for w in self.model.get_weights()]

    backup = callbacks.BackupAndRestore(
        tmp_path / "b", save_freq=3, asynchronous=False
    )
    guard = callbacks.NonFiniteRollback(
        "rollback", tmp_path / "b", learning_rate_factor=0.5
    )
    optimizer = keras.optimizers.Adam(rate)
    model = network(keras.Model, {"optimizer": optimizer})
    with caplog.at_level(logging.WARNING, "keras_tfopt"):
        fit(data((5,)), backup, guard, Watch(), epochs=1)(model)
    # Three steps are in the backup, two are undone, one is left out.
    for actual, expected in zip(weights[5], weights[2], strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert int(optimizer.iterations) == 3 + 2
    assert "go back to generation-00000001" in guard.events[0]["action"]
    if scheduled:
        assert "learning rate, which stays" in guard.events[0]["action"]
    else:
        assert float(optimizer.learning_rate) == pytest.approx(0.005)


def test_rollback_without_a_backup_leaves_out(tmp_path):
    guard = callbacks.NonFiniteRollback("rollback", tmp_path / "none")
    expected = run(network, fit(data(without=(1,))), keras.Model)
    outcome = run(network, fit(data((1,)), guard), keras.Model)
    assert_same(outcome, expected)
    assert "no finite backup" in guard.events[0]["action"]


def test_a_restored_run_remembers(tmp_path):
    def train(*extra):
        guard = callbacks.NonFiniteRollback(max_bad_batches=4)
        outcome = run(network, fit(data((1, 4)), guard, *extra), keras.Model)
        return outcome, guard

    expected, guard = train()
    backup = callbacks.BackupAndRestore(tmp_path, 1, asynchronous=False)
    with pytest.raises(models.Interruption):
        train(backup, models.AtBatch(6, models.interrupt))
    again = callbacks.BackupAndRestore(tmp_path)
    outcome, restored = train(again)
    assert_same(outcome, expected, tolerance=0)
    assert [(e["epoch"], e["batch"]) for e in restored.events] == [
        (0, 1), (0, 4), (1, 1), (1, 4),
    ]  # fmt: skip


def test_with_recovery_from_lack_of_memory():
    guard = callbacks.NonFiniteRollback()
    expected = run(network, fit(data(without=(2,))), keras.Model)
    outcome = run(
        network,
        fit(data((2,)), callbacks.OOMRecovery(), guard),
        keras.Model,
    )
    assert_same(outcome, expected)
    assert "make_train_function" not in vars(outcome.model)


@pytest.mark.parametrize(
    "arguments",
    [
        {"policy": "hope"},
        {"policy": "rollback", "name": "backup_dir"},
        {"spike_factor": 0},
        {"window": 0},
        {"warmup": -1},
        {"max_bad_batches": 1.5},
        {"forget_after": 0},
        {"learning_rate_factor": 0},
        {"learning_rate_factor": 1.1},
    ],
    ids=str,
)
def test_bad_arguments(arguments):
    name = arguments.pop("name", next(iter(arguments)))
    with pytest.raises(ValueError, match=f"`{name}`.*Received.*Expected"):
        callbacks.NonFiniteRollback(**arguments)
