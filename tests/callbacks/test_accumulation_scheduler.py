"""Another number of micro-batches in later epochs, without retracing."""

import keras
import pytest

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from tests import models
from tests.equivalence import assert_same
from tests.equivalence import run


class CountedTraces(keras.layers.Layer):
    traces = 0

    def call(self, inputs):
        CountedTraces.traces += 1
        return inputs


def _regressor(cls):
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(1)(CountedTraces()(inputs))
    return models.compiled(cls(inputs, outputs))


def test_equals_stock_and_traces_once():
    expected = run(_regressor, lambda m: models.fit(m, epochs=4), keras.Model)
    traces = []

    def fit(model):
        schedule = callbacks.AccumulationScheduler({1: 2, 3: 5})
        count = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda *_: traces.append(CountedTraces.traces)
        )
        return models.fit(model, epochs=4, callbacks=[schedule, count])

    outcome = run(_regressor, fit, AccumModel)
    assert_same(outcome, expected)
    assert traces[0] < traces[1] == traces[2] == traces[3]
    events = outcome.model.plan_events
    assert [event.new.accumulation_steps for event in events] == [2, 5]
    assert [event.step for event in events] == [3, 9]
    assert "epoch 3" in events[1].reason


def test_a_run_that_starts_late_gets_what_was_due():
    model = models.regressor(AccumModel, microbatch_size=3)
    schedule = callbacks.AccumulationScheduler({0: 1, 2: 4})
    models.fit(model, initial_epoch=5, epochs=6, callbacks=[schedule])
    assert model.plan.accumulation_steps == 4
    assert model.plan.microbatch_size is None


@pytest.mark.parametrize(
    "schedule", [None, {}, [1, 2], {-1: 2}, {0: 0}, {0: None}, {"0": 2}]
)
def test_bad_schedules(schedule):
    with pytest.raises(ValueError, match="schedule.*Received.*Expected"):
        callbacks.AccumulationScheduler(schedule)


def test_a_plain_model_is_refused():
    model = models.regressor(keras.Model)
    schedule = callbacks.AccumulationScheduler({0: 2})
    with pytest.raises(ValueError, match="AccumModel.from_model"):
        models.fit(model, callbacks=[schedule])
