import time

import keras
import numpy as np
import pytest

from keras_tfopt import AccumModel
from keras_tfopt import ExecutionPlan
from keras_tfopt import callbacks
from tests import builders

SLOW = ExecutionPlan(accumulation_steps=4)


class ChangesThePlan(keras.callbacks.Callback):
    """Changes the plan in mid-run."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 9:
            self.model.change_plan(SLOW, "a bad idea")


def fit(model, *added):
    x, y = builders.regression_data(rows=120)
    model.fit(
        x, y, batch_size=4, shuffle=False, verbose=0, callbacks=list(added)
    )


def wait(values):
    # Once for each micro-batch.
    time.sleep(0.02)


def make_model(cls, forward=None, **settings):
    keras.utils.set_random_seed(0)
    probe = builders.Probe(forward=forward)
    return builders.stack(cls, [probe], **settings)


def test_slower_plan_is_taken_back_and_changes_no_result():
    stock = make_model(keras.Model)
    fit(stock)
    model = make_model(AccumModel, forward=wait)
    rollback = callbacks.PlanRollback(steps=4)

    fit(model, rollback, ChangesThePlan())

    assert model.plan == ExecutionPlan()
    changed, back = rollback.plan_events
    assert (changed.new, back.new) == (SLOW, ExecutionPlan())
    assert "times as long as under the plan before" in back.reason
    # Ten steps, the first under the new plan, and those it is judged by.
    assert (changed.step, back.step) == (10, 15)
    for ours, theirs in zip(model.weights, stock.weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_plan_that_never_changes_stays():
    model = make_model(keras.Model)
    rollback = callbacks.PlanRollback(steps=2)

    fit(model, rollback)

    assert rollback.plan_events == ()
    assert not hasattr(model, "_keras_tfopt_guards") or (
        "make_train_function" not in vars(model)
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_slowdown": 0.9},
        {"max_slowdown": float("nan")},
        {"max_slowdown": "much"},
        {"steps": 0},
        {"steps": None},
    ],
)
def test_refuses(arguments):
    with pytest.raises(ValueError, match="Received"):
        callbacks.PlanRollback(**arguments)
