"""Who may change a plan, and the record of it."""

from collections.abc import Callable
from collections.abc import Iterable
import gc
import logging
import time
from typing import Any

import keras

from keras_tfopt.compilation.shapes import Shapes
from keras_tfopt.compilation.shapes import shapes_of
from keras_tfopt.compilation.shapes import with_rows
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.plan import PlanEvent
from keras_tfopt.training.checks import check_alike
from keras_tfopt.training.failure import DroppedBatch
from keras_tfopt.training.failure import Listener
from keras_tfopt.training.failure import Remedy
from keras_tfopt.training.failure import StepFailure
from keras_tfopt.training.failure import StepReport
from keras_tfopt.training.failure import describe_batch
from keras_tfopt.training.failure import describe_change
from keras_tfopt.training.settings import AccumulationSettings

_logger = logging.getLogger("keras_tfopt")


def events_of(controls: Iterable["PlanControl"]) -> tuple[PlanEvent, ...]:
    """Returns the changes of plan of several controls, one after the other."""
    return tuple(e for control in controls for e in control.plan_events)


class PlanControl:
    """Asks the remedies for another plan and puts it in force.

    Args:
        model: A compiled Keras model.
        settings: `AccumulationSettings`, whose plan is in force.
        work: String. What runs under the plan, for the log.
        describe_rows: Callable from a batch to its rows and its `shape_key`,
            by which remedies decide. Defaults to those of the batch itself.

    Attributes:
        work: As given.
        remedies: List of `Remedy`, asked in order.
    """

    def __init__(
        self,
        model: keras.Model,
        settings: AccumulationSettings,
        work: str,
        describe_rows: Callable[[Any], tuple[int | None, str]] = describe_batch,
    ) -> None:
        self._describe_rows = describe_rows
        self._model = model
        self._settings = settings
        self.work = work
        self._is_prepared = False
        self.remedies: list[Remedy] = []

    @property
    def plan(self) -> ExecutionPlan:
        """The `ExecutionPlan` in force."""
        return self._settings.plan

    @property
    def plan_events(self) -> tuple[PlanEvent, ...]:
        """Every change of plan so far, oldest first."""
        return self._settings.plan_events

    @property
    def listeners(self) -> list[Listener]:
        """Who is told of good steps, failures and changes of plan."""
        return self._settings.listeners

    def register(self, remedy: Remedy) -> None:
        """Adds a remedy, behind those that are there."""
        self._register(len(self.remedies), remedy)

    def register_first(self, remedy: Remedy) -> None:
        """Adds a remedy, before those that are there."""
        self._register(0, remedy)

    def unregister(self, remedy: Remedy) -> None:
        """Takes a remedy out, with what needs its care."""
        if remedy in self.remedies:
            self.remedies.remove(remedy)
            self._settings.plan = remedy.withdraw(self.plan)

    def clear(self) -> None:
        """Takes all remedies and listeners out."""
        self.listeners.clear()
        for remedy in list(self.remedies):
            self.unregister(remedy)

    def plan_for(self, batch: Any) -> ExecutionPlan:
        """Returns the plan in force, as the remedies adapt it to a batch."""
        plan = self.plan
        for remedy in self.remedies:
            plan = remedy.adapt(plan, batch)
        return plan

    def alike(self, batches: list[Any], plan: ExecutionPlan) -> list[Any]:
        """Returns the batches at the front that run under one plan.

        Args:
            batches: List of nests of tensors.
            plan: What `plan_for` returned for the first.
        """
        if not self.remedies or len(batches) == 1:
            return batches
        shapes = _compiled_shapes(batches[0], plan)
        count = 1
        for batch in batches[1:]:
            # XLA compiles for each shape.
            is_other = plan.jit_compile and (
                _compiled_shapes(batch, plan) != shapes
            )
            if is_other or self.plan_for(batch) != plan:
                break
            count += 1
        return batches[:count]

    def prepare(self, batch: Any) -> None:
        """Lets the remedies change the plan before the first batch."""
        if self._is_prepared:
            return
        self._is_prepared = True
        for remedy in self.remedies:
            start = time.perf_counter()
            proposal = remedy.prepare(self._model, batch, self.plan)
            if proposal is not None and proposal[0] != self.plan:
                self.change(*proposal, time.perf_counter() - start)

    def recover(
        self,
        error: Exception,
        batch: Any,
        tried: tuple[ExecutionPlan, ...],
        start: float,
    ) -> bool:
        """Changes the plan after a failure, if a remedy knows another.

        Args:
            error: What the step raised.
            batch: Nest of tensors that it ran on.
            tried: Plans that failed on this batch, the last one included.
            start: Float. `time.perf_counter()` when the step began.

        Returns:
            Boolean. Whether the batch shall run again.
        """
        seconds = time.perf_counter() - start
        failure = self._failure(error, batch, tried, seconds)
        self._tell(failure)
        for remedy in self.remedies:
            proposal = remedy.propose(failure)
            if proposal is not None:
                # Cycles of dead objects may hold what memory is short of.
                gc.collect()
                self.change(*proposal, time.perf_counter() - start)
                return True
        return False

    def drop(
        self, error: Exception, batch: Any, tried: tuple[ExecutionPlan, ...]
    ) -> bool:
        """Whether a remedy wants to leave out a batch that failed."""
        failure = self._failure(error, batch, tried, 0.0)
        is_dropped = any(remedy.drop(failure) for remedy in self.remedies)
        if is_dropped:
            self._tell(DroppedBatch(failure))
        return is_dropped

    def review(self, batch: Any, steps: int) -> None:
        """Lets the remedies change the plan after good steps."""
        if not self.remedies:
            return
        rows, key = self._describe_rows(batch)
        for remedy in self.remedies:
            proposal = remedy.review(self.plan, rows, key, steps)
            if proposal is not None:
                self.change(*proposal)

    def _failure(
        self,
        error: Exception,
        batch: Any,
        tried: tuple[ExecutionPlan, ...],
        seconds: float,
    ) -> StepFailure:
        rows, key = self._describe_rows(batch)
        return StepFailure(error, self.plan, rows, key, tried, seconds)

    def observe(self, report: StepReport) -> None:
        """Lets the remedies look at the cost of good steps."""
        for remedy in self.remedies:
            remedy.observe(report)
        self._tell(report)

    def _tell(self, event: Any) -> None:
        for listener in self.listeners:
            listener(event)

    def _register(self, index: int, remedy: Remedy) -> None:
        check_alike(self._model, type(remedy).__name__, remedy.decides_alike)
        # Neither this nor taking it back is a decision, so not an event.
        self._settings.plan = remedy.resume(self.plan)
        self.remedies.insert(index, remedy)
        self._is_prepared = False

    def change(
        self, plan: ExecutionPlan, reason: str, seconds: float = 0.0
    ) -> None:
        """Puts a plan in force, records it and logs one line.

        Args:
            plan: `ExecutionPlan`, or the one in force to record a decision.
            reason: String. Why.
            seconds: Float. What the change cost. Defaults to 0.
        """
        optimizer = self._model.optimizer
        step = 0 if optimizer is None else int(optimizer.iterations.numpy())
        _logger.warning(
            "Step %d: %s %s, %.1f s lost: %s",
            step,
            self.work,
            describe_change(self.plan, plan),
            seconds,
            reason,
        )
        self._settings.change_plan(plan, reason, step, seconds)


def _compiled_shapes(batch: Any, plan: ExecutionPlan) -> Shapes:
    shapes = shapes_of(batch)
    if plan.padded_rows is None:
        return shapes
    return with_rows(shapes, plan.padded_rows)
