"""What the guarded step tells, as records and sums."""

from collections.abc import Callable
import time
from typing import Any

from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.plan import PlanEvent
from keras_tfopt.telemetry.records import FailedRetry
from keras_tfopt.telemetry.records import PlanChange
from keras_tfopt.telemetry.records import RefusedStep
from keras_tfopt.training.bad_steps import BadStepRemedy
from keras_tfopt.training.batch import static_rows
from keras_tfopt.training.failure import DroppedBatch
from keras_tfopt.training.failure import StepFailure
from keras_tfopt.training.failure import StepReport
from keras_tfopt.training.guarded_step import GuardedStep


class StepListener:
    """Listens to the guard of a model, if it has one.

    A guard may come and go with other callbacks, so it is looked for at each
    step.

    Args:
        put: Callable that takes a record.

    Attributes:
        plan: `ExecutionPlan` of the last of them, or `None`.
        batch_rows: Integer or `None`. Rows of the last batch.
        cost_seconds: Float. Time that listening took since it was last told.
    """

    def __init__(self, put: Callable[[Any], None]) -> None:
        self._put = put
        self._function: Any = None
        self.plan: ExecutionPlan | None = None
        self.batch_rows: int | None = None
        self.cost_seconds = 0.0
        self._report_rows: int | None = None
        self._forget()

    def follow(self, function: Any) -> None:
        """Listens to what runs the steps now, and to nothing else."""
        if function is self._function:
            return
        self.leave()
        self._function = function
        control = getattr(function, "control", None)
        if control is not None:
            control.listeners.append(self._note)

    def leave(self) -> None:
        """Listens to nothing."""
        control = getattr(self._function, "control", None)
        if control is not None and self._note in control.listeners:
            control.listeners.remove(self._note)
        self._function = None

    @property
    def reports(self) -> bool:
        """Whether steps are reported, apart from calls."""
        return isinstance(self._function, GuardedStep)

    @property
    def wait_seconds(self) -> float | None:
        """Time of waiting for data so far, where somebody measures it."""
        return getattr(self._function, "wait_seconds", None)

    def take(self) -> tuple[int, int | None, float]:
        """Returns updates, their rows and their seconds since the last time."""
        taken = self._steps, self._rows, self._seconds
        self._forget()
        return taken

    def _forget(self) -> None:
        self._steps = 0
        self._rows: int | None = 0
        self._seconds = 0.0

    def _note(self, event: Any) -> None:
        start = time.perf_counter()
        self._take_event(event)
        self.cost_seconds += time.perf_counter() - start

    def _take_event(self, event: Any) -> None:
        if isinstance(event, StepReport):
            self._note_steps(event)
        elif isinstance(event, PlanEvent):
            self._put(PlanChange(time.time(), event))
        elif isinstance(event, StepFailure):
            if len(event.tried) > 1:
                self._put(FailedRetry(len(event.tried)))
        elif isinstance(event, DroppedBatch):
            self._note_refusal()

    def _note_steps(self, report: StepReport) -> None:
        rows = report.rows
        known = self._rows is not None and rows is not None
        self._rows = (self._rows or 0) + (rows or 0) if known else None
        self._steps += report.steps
        self._seconds += report.seconds
        self.plan = report.plan
        # To look at shapes takes longer than all other notes.
        if report.steps > 1 or rows is None or rows != self._report_rows:
            self._report_rows = rows if report.steps == 1 else None
            self.batch_rows = static_rows(report.batches[-1])

    def _note_refusal(self) -> None:
        for remedy in self._function.control.remedies:
            if isinstance(remedy, BadStepRemedy) and remedy.events:
                # JSON has no number for what is not finite.
                event = remedy.events[-1]
                values = (event["loss"], event["gradient_norm"])
                is_finite = not any(isinstance(v, str) for v in values)
                self._put(RefusedStep(is_finite))
                return
