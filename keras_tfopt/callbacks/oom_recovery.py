"""Going on after an out-of-memory error, with the same effective batch."""

import dataclasses
from typing import Any

import keras

from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.plan import PlanEvent
from keras_tfopt.plan import check_positive_integer
from keras_tfopt.training import guard_of
from keras_tfopt.training import remove_guard
from keras_tfopt.training.failure import OutOfMemoryError
from keras_tfopt.training.failure import StepFailure
from keras_tfopt.training.failure import is_out_of_memory


class OOMRecovery(keras.callbacks.Callback):
    """Halves the micro-batch when a step runs out of memory.

    The batch that failed has left no trace and runs again in smaller
    micro-batches, so that the effective batch, the optimizer's updates and what
    callbacks and schedules see stay those of a run with enough memory. After
    quiet steps the next larger micro-batch is tried, up to the one that the
    model was given; a size that failed is tried ever more rarely, since a failed
    allocation costs TensorFlow 10 to 20 seconds.

    It works on any compiled Keras model without a `train_step` of its own. Each
    change is a `PlanEvent` and one line in the log `keras_tfopt`.

    Example:

    ```python
    import keras
    from keras_tfopt import callbacks

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    recovery = callbacks.OOMRecovery(min_microbatch_size=2)
    x, y = keras.ops.ones((16, 4)), keras.ops.ones((16, 1))
    model.fit(x, y, callbacks=[recovery], verbose=0)
    assert recovery.plan_events == ()
    ```

    Args:
        min_microbatch_size: Integer. Smallest micro-batch to try. Defaults to
            1.
        grow_after: Integer or `None`. Steps without a failure after which the
            next larger micro-batch is tried; twice as many for each time that a
            size has failed. `None` never grows. Defaults to 100.

    Raises:
        ValueError: If a number is not a positive integer.
    """

    def __init__(
        self, min_microbatch_size: int = 1, grow_after: int | None = 100
    ) -> None:
        super().__init__()
        check_positive_integer("min_microbatch_size", min_microbatch_size)
        check_positive_integer("grow_after", grow_after)
        if min_microbatch_size is None:
            raise ValueError(
                "Invalid value for argument `min_microbatch_size`. Received: "
                "min_microbatch_size=None. Expected: an integer of at least 1."
            )
        self.min_microbatch_size = min_microbatch_size
        self.grow_after = grow_after
        self._guard: Any = None
        self._original = ExecutionPlan()
        self._quiet_steps = 0
        # How often a size has failed, by the shape of the batch.
        self._failures: dict[str, dict[int, int]] = {}

    @property
    def plan_events(self) -> tuple[PlanEvent, ...]:
        """Every change of plan of the model, oldest first."""
        return () if self._guard is None else self._guard.plan_events

    def on_train_begin(self, logs: Any = None) -> None:
        """Registers with the guarded step of the model."""
        self._guard = guard_of(self.model)
        self._guard.remedies.append(self)
        self._original = self._guard.plan
        self._quiet_steps = 0

    def on_train_end(self, logs: Any = None) -> None:
        """Takes the registration back."""
        self._guard.remedies.remove(self)
        if not self._guard.remedies:
            remove_guard(self.model)

    def propose(self, failure: StepFailure) -> tuple[ExecutionPlan, str] | None:
        """Returns the plan with half the micro-batch; see `Remedy`.

        Raises:
            OutOfMemoryError: If the micro-batch cannot be made smaller.
        """
        if not is_out_of_memory(failure.error) or failure.rows is None:
            return None
        self._quiet_steps = 0
        size = failure.plan.rows_of_microbatch(failure.rows)
        sizes = self._failures.setdefault(failure.shape_key, {})
        sizes[size] = sizes.get(size, 0) + 1
        if size <= self.min_microbatch_size:
            raise OutOfMemoryError(_describe_end(failure, size)) from (
                failure.error
            )
        smaller = max(size // 2, self.min_microbatch_size)
        return _resized(failure.plan, smaller), (
            f"out of memory with {size} of {failure.rows} rows at a time"
        )

    def review(
        self, plan: ExecutionPlan, rows: int | None, shape_key: str, steps: int
    ) -> tuple[ExecutionPlan, str] | None:
        """Returns the plan with twice the micro-batch; see `Remedy`."""
        self._quiet_steps += steps
        if self.grow_after is None or plan == self._original or rows is None:
            return None
        size = 2 * plan.rows_of_microbatch(rows)
        largest = self._original.rows_of_microbatch(rows)
        failed = [
            count
            for known, count in self._failures.get(shape_key, {}).items()
            if known <= size
        ]
        wait = self.grow_after * 2 ** max(sum(failed) - 1, 0)
        if self._quiet_steps < wait:
            return None
        reason = f"{self._quiet_steps} steps without a failure"
        self._quiet_steps = 0
        if size >= largest:
            return self._original, reason
        return _resized(plan, size), reason


def _resized(plan: ExecutionPlan, size: int) -> ExecutionPlan:
    return dataclasses.replace(
        plan, microbatch_size=size, accumulation_steps=None
    )


def _describe_end(failure: StepFailure, size: int) -> str:
    tried = ", ".join(
        str(plan.rows_of_microbatch(failure.rows or 1)) for plan in failure.tried
    )
    return (
        "A step does not fit into memory, even in the smallest micro-batch "
        f"allowed. Received: a batch of {failure.rows} rows; tried {tried} "
        f"rows at a time. Expected: room for {size}. Free memory, make the "
        "model or its inputs smaller, or allow smaller micro-batches with "
        "`min_microbatch_size`. TensorFlow says: "
        f"{str(failure.error).splitlines()[0] if str(failure.error) else ''}"
    )
