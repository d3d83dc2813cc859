"""`DistributionMonitor` finds what replicas wait for, and changes nothing."""

import time

import keras
import numpy as np
import pytest

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from tests import builders
from tests import models
from tests.distribution.replicated.strategies import all_parts
from tests.distribution.replicated.strategies import mirrored
from tests.distribution.replicated.strategies import under
from tests.equivalence import assert_same
from tests.equivalence import run
from tests.telemetry.capture import Capture

# Batches of 9, 9 and 1 rows: parts that differ, and a replica without rows.
ROWS = 19
UPDATES = 6
# Longer than what a busy machine makes of the rest of a step.
SLOW_SECONDS = 0.25


def fit(model, *added, **kwargs):
    arrays = models.X[:ROWS], models.Y[:ROWS]
    kwargs = {"batch_size": 9, "callbacks": list(added), **kwargs}
    return models.fit(model, *arrays, **kwargs)


def slow_on_marked_rows(array):
    if (array[:, 0] > 100).any():
        time.sleep(SLOW_SECONDS)


def slow_network(cls):
    inputs = keras.Input((4,))
    hidden = builders.Probe(slow_on_marked_rows)(inputs)
    return models.compiled(cls(inputs, keras.layers.Dense(1)(hidden)))


def operations(model):
    """Returns the kinds of operations in the steps of a model."""
    functions = model.train_function._functions._functions.values()
    return [op.type for f in functions for op in f.graph.get_operations()]


@pytest.mark.parametrize(
    ("count", "cross_device_ops", "settings", "compile_with"),
    [
        (2, "hierarchical_copy", {"microbatch_size": 2}, {}),
        (3, None, {"accumulation_steps": 2}, {}),
        (2, None, {"microbatch_size": 3}, {"jit_compile": True}),
    ],
)
def test_watching_changes_nothing(
    count, cross_device_ops, settings, compile_with
):
    strategy = mirrored(count, cross_device_ops)
    monitor = callbacks.DistributionMonitor()

    def make(cls, **settings):
        return models.regressor(cls, compile_with, **settings)

    def train(model):
        return fit(model, *([monitor] if isinstance(model, AccumModel) else []))

    expected = run(make, train, keras.Model)
    actual = run(under(strategy, make), train, AccumModel, **settings)
    assert_same(actual, expected, 1e-6)
    variables = [*actual.model.variables, *actual.model.optimizer.variables]
    for first, *others in all_parts(actual.model, variables):
        for part in others:
            np.testing.assert_array_equal(part, first)

    figures = monitor.figures()
    assert figures.steps == UPDATES - 1
    assert len(figures.compute_seconds) == count
    assert all(seconds > 0 for seconds in figures.compute_seconds)
    assert 0 < figures.communication_seconds < figures.step_seconds
    assert max(figures.compute_seconds) < figures.step_seconds
    # Gradients of two layers, in float32.
    assert figures.reduced_bytes == 4 * (4 * 5 + 5 + 5 + 1)


def test_slow_replica_is_found(strategy, caplog):
    x = models.X[:8].copy()
    # The second replica has the second half of each batch.
    x[[2, 3, 6, 7], 0] = 1000.0
    model = under(strategy, slow_network)(AccumModel)
    monitor, capture = callbacks.DistributionMonitor(), Capture()
    models.fit(
        model,
        x,
        models.Y[:8],
        batch_size=4,
        epochs=3,
        callbacks=[monitor, capture],
    )

    figures = monitor.figures()
    assert figures.steps == 5 and figures.slowest == 1
    assert figures.compute_seconds[1] > SLOW_SECONDS
    assert figures.load_imbalance_ratio > 0.3
    # The first one's waiting is no communication.
    assert figures.communication_time_ratio < 0.5
    assert capture.value("load_imbalance_ratio") > 0.3
    assert capture.value("communication_time_ratio", source="step") < 0.5
    assert capture.value("replica_compute_seconds", replica="1") > SLOW_SECONDS
    total = capture.value("reduced_bytes_total")
    assert total == 5 * figures.reduced_bytes
    said = [m for m in caplog.messages if "Replica 1 computes" in m]
    assert len(said) == 1


def test_clock_comes_and_goes(strategy):
    model = under(strategy, models.regressor)(AccumModel)
    fit(model, epochs=1)
    assert "Timestamp" not in operations(model)
    monitor = callbacks.DistributionMonitor()
    fit(model, monitor, epochs=1)
    assert not model.train_function.checks
    # The first step of all is left out.
    assert monitor.figures().steps == UPDATES // 2 - 1
    fit(model, monitor, epochs=1)
    assert monitor.figures().steps == UPDATES // 2


def test_plain_model(strategy):
    model = under(strategy, models.regressor)(keras.Model)
    monitor = callbacks.DistributionMonitor()
    models.fit(model, callbacks=[monitor])
    assert monitor.figures().steps == UPDATES - 1
    assert model.train_function is None


def test_sparse_gradients_count_as_they_are(strategy):
    def make(cls):
        inputs = keras.Input((3,), dtype="int32")
        hidden = keras.layers.Embedding(50, 2)(inputs)
        outputs = keras.layers.Dense(1)(keras.layers.Flatten()(hidden))
        return models.compiled(cls(inputs, outputs), optimizer="sgd")

    model = under(strategy, make)(AccumModel)
    monitor = callbacks.DistributionMonitor()
    x = np.ones((8, 3), "int32")
    models.fit(
        model, x, models.Y[:8], batch_size=4, epochs=1, callbacks=[monitor]
    )
    dense = 4 * (6 + 1)
    # Two rows on each replica, of three indices of 32 bits each.
    assert monitor.figures().reduced_bytes == dense + 6 * (2 * 4 + 4)


class OwnStep(AccumModel):
    def train_step(self, *arguments):
        return super().train_step(*arguments)


@pytest.mark.parametrize(
    ("count", "cls", "reason"),
    [(1, AccumModel, "one replica"), (2, OwnStep, "its own train_step")],
)
def test_what_cannot_be_known_is_absent(count, cls, reason, caplog):
    caplog.set_level("INFO", "keras_tfopt")
    model = under(mirrored(count), models.regressor)(cls)
    monitor, capture = callbacks.DistributionMonitor(), Capture()
    models.fit(
        model, models.X[:20], models.Y[:20], callbacks=[monitor, capture]
    )
    assert monitor.figures() is None
    assert capture.value("load_imbalance_ratio") is None
    said = [m for m in caplog.messages if "load_imbalance_ratio" in m]
    assert len(said) == 1 and reason in said[0]


def test_without_a_strategy(caplog):
    caplog.set_level("INFO", "keras_tfopt")
    monitor = callbacks.DistributionMonitor()
    fit(models.regressor(keras.Model), monitor)
    assert monitor.figures() is None
    assert any("one replica" in m for m in caplog.messages)


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_communication_ratio": 0},
        {"max_imbalance_ratio": 0},
        {"interval_seconds": 0},
    ],
)
def test_refuses(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=name):
        callbacks.DistributionMonitor(**arguments)
