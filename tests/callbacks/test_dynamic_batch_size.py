"""The effective batch follows free memory, and the learning rate the batch."""

import keras
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from keras_tfopt.memory import read_allocator_stats
from tests import models
from tests.equivalence import assert_same
from tests.equivalence import run

BATCH = 5
ROOM, NO_ROOM = 2**40, 2**20


@pytest.fixture
def ballast():
    """Holds more than `NO_ROOM`, which the allocator counts."""
    tensor = tf.zeros((2**20,))
    if read_allocator_stats() is None:
        pytest.skip("the device counts nothing")
    return tensor


def stock(batches, factor):
    """Trains an epoch with each batch, the rate multiplied in between."""

    def fit(model):
        losses = []
        for index, batch in enumerate(batches):
            if index:
                rate = float(model.optimizer.learning_rate)
                model.optimizer.learning_rate = rate * factor(
                    batch / batches[index - 1]
                )
            history = models.fit(model, batch_size=batch, epochs=1)
            losses.append(history.history)
        return {
            name: [epoch[name][0] for epoch in losses] for name in losses[0]
        }

    return fit


def dynamic(recorder, epochs=3):
    def fit(model):
        history = models.fit(
            model,
            batch_size=BATCH,
            epochs=epochs,
            callbacks=[recorder],
        )
        return history.history

    return fit


def sizes(model):
    return [event.new.gather_steps for event in model.plan_events]


@pytest.mark.parametrize(
    ("rule", "factor"),
    [
        ("none", lambda ratio: 1),
        ("linear", lambda ratio: ratio),
        ("sqrt", lambda ratio: ratio**0.5),
    ],
)
def test_grows_while_there_is_room(ballast, rule, factor):
    expected = run(models.regressor, stock([5, 10, 20], factor), keras.Model)
    recorder = callbacks.DynamicBatchSize(
        max_gather_steps=4, learning_rate_rule=rule, limit_bytes=ROOM
    )
    outcome = run(models.regressor, dynamic(recorder), AccumModel)
    assert_same(outcome, expected)
    assert sizes(outcome.model) == [2, 4]
    assert "peak of epoch 1" in outcome.model.plan_events[-1].reason


def test_stops_growing_at_the_largest(ballast):
    recorder = callbacks.DynamicBatchSize(max_gather_steps=3, limit_bytes=ROOM)
    outcome = run(models.regressor, dynamic(recorder, epochs=4), AccumModel)
    assert sizes(outcome.model) == [2, 3]


def test_shrinks_where_room_is_short(ballast):
    expected = run(
        models.regressor, stock([20, 10, 5], lambda ratio: ratio), keras.Model
    )
    recorder = callbacks.DynamicBatchSize(
        learning_rate_rule="linear", limit_bytes=NO_ROOM
    )
    outcome = run(
        models.regressor,
        dynamic(recorder, epochs=3),
        AccumModel,
        gather_steps=4,
    )
    assert_same(outcome, expected)
    assert sizes(outcome.model) == [2, 1]


def test_a_schedule_is_refused_before_the_first_step(ballast):
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 10)
    model = models.regressor(
        AccumModel, {"optimizer": models.momentum(schedule)}
    )
    recorder = callbacks.DynamicBatchSize(
        learning_rate_rule="linear", limit_bytes=ROOM
    )
    with pytest.raises(ValueError, match="learning_rate_rule='none'"):
        dynamic(recorder)(model)
    assert int(model.optimizer.iterations) == 0


def test_a_device_without_a_limit_is_refused():
    model = models.regressor(AccumModel)
    with pytest.raises(ValueError, match="limit_bytes=None.*Expected: a GPU"):
        dynamic(callbacks.DynamicBatchSize())(model)


def test_a_model_without_a_plan_is_refused():
    with pytest.raises(ValueError, match="DynamicBatchSize.*from_model"):
        dynamic(callbacks.DynamicBatchSize())(models.regressor(keras.Model))


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_gather_steps": 0},
        {"max_gather_steps": None},
        {"min_gather_steps": 9},
        {"grow_below": 0},
        {"grow_below": 0.95},
        {"shrink_above": 1.1},
        {"learning_rate_rule": "cubic"},
        {"limit_bytes": -1},
    ],
    ids=str,
)
def test_bad_arguments(arguments):
    with pytest.raises(ValueError, match=f"{next(iter(arguments))}.*Expected"):
        callbacks.DynamicBatchSize(**arguments)
