"""The plan is checked, comparable data that nothing can change."""

import dataclasses

import numpy as np
import pytest

from keras_tfopt import ExecutionPlan
from keras_tfopt import PlanEvent

FIELDS = ["accumulation_steps", "microbatch_size"]


def test_a_plan_does_not_split_by_default():
    assert not ExecutionPlan().is_split
    assert not ExecutionPlan(jit_compile=True).is_split


@pytest.mark.parametrize("field", FIELDS)
def test_either_setting_splits(field):
    plan = ExecutionPlan(**{field: 4})
    assert plan.is_split
    assert getattr(plan, field) == 4
    assert ExecutionPlan(**{field: 1}).is_split


def test_plans_are_compared_and_hashed_by_value():
    assert ExecutionPlan(4) == ExecutionPlan(accumulation_steps=4)
    assert ExecutionPlan(4) != ExecutionPlan(microbatch_size=4)
    assert len({ExecutionPlan(4), ExecutionPlan(4), ExecutionPlan(5)}) == 2


@pytest.mark.parametrize("field", FIELDS)
def test_numpy_integers_become_integers(field):
    plan = ExecutionPlan(**{field: np.int64(4)})
    assert type(getattr(plan, field)) is int
    assert plan == ExecutionPlan(**{field: 4})


def test_a_plan_cannot_be_changed():
    plan = ExecutionPlan(accumulation_steps=4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.accumulation_steps = 2
    assert dataclasses.replace(plan, accumulation_steps=2) == ExecutionPlan(2)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    "value", [0, -1, 2.0, 2.5, True, False, "4", [4]], ids=repr
)
def test_what_is_not_a_positive_integer_is_refused(field, value):
    with pytest.raises(ValueError) as error:
        ExecutionPlan(**{field: value})
    message = str(error.value)
    assert f"`{field}`" in message
    assert f"Received: {field}={value!r}" in message
    assert f"type {type(value).__name__}" in message
    assert "Expected: an integer of at least 1, or None" in message


@pytest.mark.parametrize("steps", [None, 1, np.int64(3)])
def test_gathering_is_part_of_a_plan(steps):
    plan = ExecutionPlan(gather_steps=steps)
    assert plan.gathers == (steps == 3)
    assert not plan.is_split
    with pytest.raises(ValueError, match="`gather_steps`"):
        ExecutionPlan(gather_steps=0)


@pytest.mark.parametrize("field", FIELDS)
def test_splitting_like_another_plan_keeps_the_rest(field):
    plan = ExecutionPlan(4, jit_compile=True, gather_steps=2)
    other = ExecutionPlan(**{field: 3})
    expected = ExecutionPlan(**{field: 3}, jit_compile=True, gather_steps=2)
    assert plan.split_like(other) == expected


def test_both_settings_exclude_each_other():
    with pytest.raises(ValueError, match="exclude") as error:
        ExecutionPlan(accumulation_steps=4, microbatch_size=8)
    message = str(error.value)
    assert "accumulation_steps=4, microbatch_size=8" in message
    assert "Expected: one of them" in message


def test_replacing_a_value_checks_it():
    with pytest.raises(ValueError, match="`microbatch_size`"):
        dataclasses.replace(ExecutionPlan(), microbatch_size=0)
    with pytest.raises(ValueError, match="exclude"):
        dataclasses.replace(ExecutionPlan(4), microbatch_size=2)


def test_an_event_says_what_changed_and_what_it_cost():
    old, new = ExecutionPlan(), ExecutionPlan(microbatch_size=8)
    event = PlanEvent(step=3, reason="memory", old=old, new=new, seconds=0.5)
    assert dataclasses.astuple(event) == (
        3,
        "memory",
        dataclasses.astuple(old),
        dataclasses.astuple(new),
        0.5,
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.step = 4


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        (None, None),
        (np.int64(2), 2),
        (["dense"], ("dense",)),
        ([["first", "last"], "other"], (("first", "last"), "other")),
    ],
)
def test_what_is_recomputed_is_hashable_data(given, normal):
    plan = ExecutionPlan(remat=given)
    assert plan.remat == normal
    assert not plan.is_split
    assert len({plan, ExecutionPlan(remat=normal)}) == 1


@pytest.mark.parametrize(
    "value", [0, -1, True, 2.0, "dense", (), (1,), (("a", "b", "c"),)], ids=repr
)
def test_what_names_no_layers_is_refused(value):
    with pytest.raises(ValueError, match="Received: remat=.*Expected: None"):
        ExecutionPlan(remat=value)
