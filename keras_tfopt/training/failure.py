"""What went wrong in a step, and who knows a way on."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt.plan import ExecutionPlan


@dataclasses.dataclass(frozen=True)
class StepFailure:
    """A step that failed and left no trace.

    Attributes:
        error: The exception.
        plan: `ExecutionPlan` that it failed under.
        rows: Integer or `None`. Rows of the batch, where it has rows.
        shape_key: String. Shapes and dtypes of the batch, apart from its rows.
        tried: Tuple of the plans that failed on this batch before.
    """

    error: Exception
    plan: ExecutionPlan
    rows: int | None
    shape_key: str
    tried: tuple[ExecutionPlan, ...]


class Remedy:
    """Knows another plan before a run, when a step fails, or when all is well.

    Each method but `drop` returns another plan with the reason, or `None`.
    """

    def prepare(
        self, model: keras.Model, batch: Any, plan: ExecutionPlan
    ) -> tuple[ExecutionPlan, str] | None:
        """Looks at the first batch before it runs."""

    def propose(self, failure: StepFailure) -> tuple[ExecutionPlan, str] | None:
        """Looks at a failure; the same batch then runs again.

        May raise a clearer error where it knows that there is no way on.
        """

    def drop(self, failure: StepFailure) -> bool:
        """Whether the batch that failed shall be left out.

        May raise a clearer error where it knows that there is no way on.
        """
        return False

    def review(
        self, plan: ExecutionPlan, rows: int | None, shape_key: str, steps: int
    ) -> tuple[ExecutionPlan, str] | None:
        """Looks back on good steps."""


def describe(plan: ExecutionPlan) -> str:
    """Returns what sets a plan apart from the default, in words."""
    settings = [
        f"{field.name}={getattr(plan, field.name)}"
        for field in dataclasses.fields(plan)
        if getattr(plan, field.name) != field.default
    ]
    return ", ".join(settings) or "whole batch"


def shape_key(spec: Any) -> str:
    """Returns the shapes of a batch apart from its rows, as a key."""
    return repr(
        [
            None if leaf is None else (str(leaf.dtype), tuple(leaf.shape[1:]))
            for leaf in tf.nest.flatten(spec)
        ]
    )
