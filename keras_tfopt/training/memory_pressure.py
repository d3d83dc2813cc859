"""A smaller micro-batch before memory runs out."""

import logging
from typing import Any

import keras

from keras_tfopt.accumulation import TRAINING
from keras_tfopt.memory.allocator import PeakWindow
from keras_tfopt.memory.readings import DeviceReading
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.batch import spec_of
from keras_tfopt.training.failure import Remedy
from keras_tfopt.training.step_function import split_step

_logger = logging.getLogger("keras_tfopt")


class MemoryPressure(Remedy):
    """Halves the micro-batch after steps that came too close to the limit.

    Another thread reports the readings; the plan changes between two steps.
    Readings of steps under an earlier plan say nothing about the one in force.

    Args:
        window: `PeakWindow` of the device.
        limit_bytes: Integer. What its allocator may hand out.
        max_utilization: Float. Share of the limit that is all right.
        min_microbatch_size: Integer. Smallest micro-batch to go down to.
    """

    def __init__(
        self,
        window: PeakWindow,
        limit_bytes: int,
        max_utilization: float,
        min_microbatch_size: int,
    ) -> None:
        self._window = window
        self._limit = limit_bytes
        self._max_utilization = max_utilization
        self._min_size = min_microbatch_size
        self._first_window = 0
        self._reading: DeviceReading | None = None
        self._rows: dict[str, int] = {}
        self._said: set[str] = set()

    @property
    def decides_alike(self) -> bool:
        """Whether workers decide so alike: each measures for itself."""
        return False

    def report(self, reading: DeviceReading) -> None:
        """Takes a reading, from any thread.

        Args:
            reading: `DeviceReading`; those of other devices are left out.
        """
        utilization = reading.utilization_ratio
        if reading.device != self._window.device or utilization is None:
            return
        if utilization > self._max_utilization:
            self._reading = reading

    def prepare(
        self, model: keras.Model, batch: Any, plan: ExecutionPlan
    ) -> None:
        """Makes sure that the model can be split, while nothing is at stake.

        Raises:
            ValueError: If it cannot; the message says why.
        """
        split_step(model, spec_of(batch), batch, TRAINING, plan)

    def review(
        self, plan: ExecutionPlan, rows: int | None, shape_key: str, steps: int
    ) -> tuple[ExecutionPlan, str] | None:
        """Returns a plan with half the micro-batch where room is short."""
        if rows is not None:
            # A short batch says nothing about the room that others need.
            rows = max(rows, self._rows.get(shape_key, 0))
            self._rows[shape_key] = rows
        reading, self._reading = self._reading, None
        if reading is None or rows is None:
            return None
        if (reading.window or 0) < self._first_window:
            return None
        utilization = reading.utilization_ratio or 0.0
        size = plan.rows_of_microbatch(rows)
        if not self._is_of_use(size):
            return None
        self._start_again()
        split = ExecutionPlan(microbatch_size=max(size // 2, self._min_size))
        reason = (
            f"{reading.device} was {utilization:.0%} full with {size} of "
            f"{rows} rows at a time"
        )
        return plan.split_like(split), reason

    def _is_of_use(self, size: int) -> bool:
        """Whether a smaller micro-batch may help."""
        if size <= self._min_size:
            self._say(f"the micro-batch of {size} rows must not be smaller")
            return False
        now = self._window.read()
        held = 0 if now is None else now.current_bytes
        if held > self._max_utilization * self._limit:
            self._say(
                f"between steps {held / self._limit:.0%} of the limit is in "
                "use, which no micro-batch changes"
            )
            return False
        return True

    def _say(self, reason: str) -> None:
        kind = reason.split()[0]
        if kind not in self._said:
            self._said.add(kind)
            _logger.warning(
                "%s stays short of memory: %s", self._window.device, reason
            )

    def _start_again(self) -> None:
        self._window.restart()
        now = self._window.read()
        self._first_window = 0 if now is None else now.restarts
