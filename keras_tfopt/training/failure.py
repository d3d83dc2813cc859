"""What went wrong in a step, and who knows a way on."""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.batch import spec_of
from keras_tfopt.training.batch import static_rows


@dataclasses.dataclass(frozen=True)
class StepFailure:
    """A step that failed and left no trace.

    Attributes:
        error: The exception.
        plan: `ExecutionPlan` in force.
        rows: Integer or `None`. Rows of the batch, where it has rows.
        shape_key: String. Shapes and dtypes of the batch, apart from its rows.
        tried: Tuple of the plans that failed on this batch. The last one is
            what the step ran under: the plan in force, adapted to the batch.
        seconds: Float. What the attempt took.
    """

    error: Exception
    plan: ExecutionPlan
    rows: int | None
    shape_key: str
    tried: tuple[ExecutionPlan, ...]
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class StepReport:
    """One or more good steps that ran in one call.

    Attributes:
        plan: `ExecutionPlan` that they ran under.
        batch: Nest of tensors. The last batch.
        steps: Integer.
        seconds: Float. Wall time, with what was traced and compiled.
        function: What ran them, a `StepFunction` or what stands for one.
        batches: Sequence of the batches of all steps. Defaults to none.
        rows_of: Callable that returns the rows of a batch, `None` where it has
            none that are known. Defaults to those of its first tensor.
    """

    plan: ExecutionPlan
    batch: Any
    steps: int
    seconds: float
    function: Any
    batches: Sequence[Any] = ()
    rows_of: Callable[[Any], int | None] = static_rows

    @property
    def rows(self) -> int | None:
        """Rows of all batches, `None` where one has none that are known."""
        sizes = [self.rows_of(batch) for batch in self.batches]
        known = [size for size in sizes if size is not None]
        return sum(known) if sizes and len(known) == len(sizes) else None


@dataclasses.dataclass(frozen=True)
class DroppedBatch:
    """A batch that a remedy left out after its step had failed.

    Attributes:
        failure: `StepFailure`.
    """

    failure: StepFailure


# Is told of each `StepReport`, `StepFailure`, `DroppedBatch` and `PlanEvent`.
Listener = Callable[[Any], None]


class Remedy:
    """Knows another plan before a run, when a step fails, or when all is well.

    `prepare`, `propose` and `review` return another plan with the reason, or
    `None`.

    """

    @property
    def decides_alike(self) -> bool:
        """Whether all workers of a training decide so by what they see."""
        return True

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

    def adapt(self, plan: ExecutionPlan, batch: Any) -> ExecutionPlan:
        """Returns the plan for one batch, mostly the one in force.

        Asked for each batch before it runs, so it must not count the asking.
        """
        return plan

    def observe(self, report: StepReport) -> None:
        """Looks at the cost of good steps."""

    def resume(self, plan: ExecutionPlan) -> ExecutionPlan:
        """Returns, when registered again, the plan as decided before."""
        return plan

    def withdraw(self, plan: ExecutionPlan) -> ExecutionPlan:
        """Returns, when unregistered, the plan without what needs its care."""
        return plan


def describe_batch(batch: Any) -> tuple[int | None, str]:
    """Returns the rows of a batch, where it has rows, and its `shape_key`."""
    spec = spec_of(batch)
    return static_rows(spec), shape_key(spec)


def describe(plan: ExecutionPlan) -> str:
    """Returns what sets a plan apart from the default, in words."""
    settings = [
        f"{field.name}={getattr(plan, field.name)}"
        for field in dataclasses.fields(plan)
        if getattr(plan, field.name) != field.default
    ]
    return ", ".join(settings) or "whole batch"


def describe_change(old: ExecutionPlan, new: ExecutionPlan) -> str:
    """Returns what becomes of a plan, in words."""
    if new == old:
        return f"keeps {describe(old)}"
    return f"changes from {describe(old)} to {describe(new)}"


def shape_key(spec: Any) -> str:
    """Returns the shapes of a batch apart from its rows, as a key."""
    return repr(
        [
            None if leaf is None else (str(leaf.dtype), tuple(leaf.shape[1:]))
            for leaf in tf.nest.flatten(spec)
        ]
    )
