"""Which micro-batch to try after a failure, and when to try a larger one."""

import dataclasses
from typing import Any

import keras

from keras_tfopt.errors import OutOfMemoryError
from keras_tfopt.errors import allocation_line
from keras_tfopt.errors import is_out_of_memory
from keras_tfopt.memory.allocator import read_allocator_stats
from keras_tfopt.memory.limit import default_device
from keras_tfopt.memory.limit import device_limit_bytes
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.failure import Remedy
from keras_tfopt.training.failure import StepFailure
from keras_tfopt.training.offload_remedy import OffloadRemedy
from keras_tfopt.training.remat_remedy import RematRemedy


class MicrobatchLadder(Remedy):
    """Halves the micro-batch where memory is short and doubles it later.

    What failed is remembered by the shape of the batch, and tried
    again ever more rarely: a passing shortage does not slow the rest of a run,
    and a lasting one costs few failures.

    Args:
        plan: `ExecutionPlan` to come back to.
        min_microbatch_size: Integer. Smallest micro-batch to try.
        grow_after: Integer or `None`. Good steps before the next larger
            micro-batch is tried; `None` never tries.
        remat: `RematRemedy` for what the smallest micro-batch does not solve,
            or `None`. Defaults to `None`.
        offload: `OffloadRemedy` for what that does not solve, or `None`.
            Defaults to `None`.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        min_microbatch_size: int,
        grow_after: int | None,
        remat: RematRemedy | None = None,
        offload: OffloadRemedy | None = None,
    ) -> None:
        self._original = plan
        self._min_size = min_microbatch_size
        self._grow_after = grow_after
        self._last_resorts = [one for one in (remat, offload) if one]
        self._offload = offload
        self._good_steps = 0
        self._failures: dict[str, dict[int, int]] = {}
        self._rows: dict[str, int] = {}
        self._last_plan: ExecutionPlan | None = None

    def prepare(
        self, model: keras.Model, batch: Any, plan: ExecutionPlan
    ) -> None:
        """Looks at the first batch."""
        for resort in self._last_resorts:
            resort.prepare(model, batch)

    def propose(self, failure: StepFailure) -> tuple[ExecutionPlan, str] | None:
        """Returns a plan with half the micro-batch, with remat or offload.

        Raises:
            OutOfMemoryError: If the micro-batch must not be smaller.
        """
        if not is_out_of_memory(failure.error) or failure.rows is None:
            return None
        if isinstance(failure.error, OutOfMemoryError):
            # Raised by us, where the size of the micro-batch does not matter.
            if self._offload is None:
                return None
            return self._offload.propose_for_slots(failure)
        size = failure.plan.rows_of_microbatch(failure.rows)
        key = _key(failure.shape_key, failure.plan)
        sizes = self._failures.setdefault(key, {})
        sizes[size] = sizes.get(size, 0) + 1
        self._good_steps = 0
        rows = max(failure.rows, self._rows.get(failure.shape_key, 0))
        self._rows[failure.shape_key] = rows
        if size <= self._min_size:
            for resort in self._last_resorts:
                found = resort.propose(failure, size)
                if found is not None:
                    return found
            raise OutOfMemoryError(
                _describe_end(failure, size)
            ) from failure.error
        smaller = max(size // 2, self._min_size)
        reason = f"out of memory with {size} of {failure.rows} rows at a time"
        split = ExecutionPlan(microbatch_size=smaller)
        self._last_plan = failure.plan.split_like(split)
        return self._last_plan, reason

    def review(
        self, plan: ExecutionPlan, rows: int | None, shape_key: str, steps: int
    ) -> tuple[ExecutionPlan, str] | None:
        """Returns a plan with twice the micro-batch when it is time."""
        self._good_steps += steps
        if rows is None or self._grow_after is None:
            return None
        # A short batch says nothing about the room that others need.
        rows = max(rows, self._rows.get(shape_key, 0))
        self._rows[shape_key] = rows
        self._notice(plan, rows, shape_key)
        original = plan.split_like(self._original)
        if plan == original:
            return None
        size = 2 * plan.rows_of_microbatch(rows)
        if self._good_steps < self._patience(_key(shape_key, plan), size):
            return None
        reason = f"{self._good_steps} steps without a failure"
        self._good_steps = 0
        grown = plan.split_like(ExecutionPlan(microbatch_size=size))
        if size >= self._original.rows_of_microbatch(rows):
            grown = original
        self._last_plan = grown
        return grown, reason

    def get_state(self) -> dict[str, Any]:
        """Returns what a restored run must not forget."""
        return {
            "good_steps": self._good_steps,
            "failures": {k: dict(v) for k, v in self._failures.items()},
            "rows": dict(self._rows),
            "last_plan": self._last_plan
            and dataclasses.asdict(self._last_plan),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Puts back what `get_state` returned."""
        self._good_steps = state["good_steps"]
        self._failures = state["failures"]
        self._rows = state["rows"]
        last = state.get("last_plan")
        self._last_plan = None if last is None else ExecutionPlan(**last)

    def _notice(self, plan: ExecutionPlan, rows: int, shape_key: str) -> None:
        """Counts a size that somebody else made smaller as one that failed."""
        last, self._last_plan = self._last_plan, plan
        size = plan.rows_of_microbatch(rows)
        if last is None or size >= last.rows_of_microbatch(rows):
            return
        sizes = self._failures.setdefault(_key(shape_key, plan), {})
        too_large = last.rows_of_microbatch(rows)
        sizes[too_large] = sizes.get(too_large, 0) + 1
        self._good_steps = 0

    def _patience(self, shape_key: str, size: int) -> int:
        """Good steps to wait before a size; twice as many per failure."""
        failures = sum(
            count
            for failed, count in self._failures.get(shape_key, {}).items()
            if failed <= size
        )
        return (self._grow_after or 1) * 2 ** max(failures - 1, 0)


def _key(shape_key: str, plan: ExecutionPlan) -> str:
    """Names what failures say something about: batches and their cost."""
    costs = [str(one) for one in (plan.remat, plan.offload) if one is not None]
    return " ".join([shape_key, *costs])


def _describe_end(failure: StepFailure, size: int) -> str:
    rows = failure.rows or 1
    tried = [
        str(plan.rows_of_microbatch(rows)) + plan.extras
        for plan in failure.tried
    ]
    return (
        "A step does not fit into memory, even in the smallest micro-batch "
        f"allowed. Received: a batch of {rows} rows; tried "
        f"{', '.join(tried)} rows at a time; {_describe_memory()}. Expected: "
        f"room for {size}. Free memory, make the model or its inputs smaller, "
        "or lower `min_microbatch_size`. TensorFlow says: "
        f"{allocation_line(failure.error)}"
    )


def _describe_memory() -> str:
    device = default_device()
    stats = read_allocator_stats(device)
    if stats is None:
        return f"{device} counts no bytes"
    limit = device_limit_bytes(device)
    return (
        f"{device} holds {stats.current_bytes} bytes between steps, at most "
        f"{stats.peak_bytes} so far, and its limit is {limit or 'unknown'}"
    )
