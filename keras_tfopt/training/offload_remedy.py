"""What is left when recomputing the smallest micro-batch does not fit."""

import dataclasses
from typing import Any

import keras

from keras_tfopt import _compat
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.failure import StepFailure
from keras_tfopt.training.placement import bytes_of
from keras_tfopt.training.placement import frozen_weights_of
from keras_tfopt.training.placement import is_computed_on_host
from keras_tfopt.training.placement import slots_of

_MIB = 2**20


class OffloadRemedy:
    """Moves to the host what a device has no room for, one thing after another.

    First what is kept for the second computation, since that only waits for
    copies; then frozen weights; the optimizer's slots last, since the host then
    computes the updates.
    """

    def __init__(self) -> None:
        self._model: keras.Model | None = None

    def prepare(self, model: keras.Model, batch: Any) -> None:
        """Notes whose variables may move."""
        self._model = model

    def propose(
        self, failure: StepFailure, size: int
    ) -> tuple[ExecutionPlan, str] | None:
        """Returns the plan with more on the host, if there is more.

        Args:
            failure: `StepFailure` with the smallest micro-batch.
            size: Integer. Its rows.
        """
        plan = failure.plan
        names = ["slots"]
        if plan.remat is not None:
            names = ["activations", "frozen_weights", "slots"]
        for name in names:
            what = self._movable(name)
            if what is not None and not plan.offloads(name):
                reason = f"out of memory with {size} rows at a time; {what}"
                return _with(plan, name), reason
        return None

    def propose_for_slots(
        self, failure: StepFailure
    ) -> tuple[ExecutionPlan, str] | None:
        """Returns the plan with slots on the host, where they do not fit.

        Args:
            failure: `StepFailure` of making them.
        """
        if failure.plan.offloads("slots") or not self._may_move_variables:
            return None
        reason = "the optimizer's slots do not fit; the host holds them"
        return _with(failure.plan, "slots"), reason

    def _movable(self, name: str) -> str | None:
        """Returns in words what moves; `None` if there is nothing to move."""
        model = self._model
        if model is None or is_computed_on_host(model):
            return None
        if name == "activations":
            return "the host keeps what is computed again"
        if not self._may_move_variables:
            return None
        of = slots_of if name == "slots" else frozen_weights_of
        variables = of(model)
        if not variables:
            return None
        size = sum(map(bytes_of, variables))
        text = name.replace("_", " ")
        return f"the host holds the {text}, {size / _MIB:.1f} MiB"

    @property
    def _may_move_variables(self) -> bool:
        model = self._model
        if model is None or is_computed_on_host(model):
            return False
        return _compat.strategy_of(model) is None


def _with(plan: ExecutionPlan, name: str) -> ExecutionPlan:
    # XLA gives way: it is for speed.
    planned = dataclasses.replace(
        plan.compiled(False), offload=(*(plan.offload or ()), name)
    )
    return planned.compiled(plan.jit_compile)
