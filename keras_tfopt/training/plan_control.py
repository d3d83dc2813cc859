"""Who may change a plan, and the record of it."""

import gc
import logging
import time
from typing import Any

import keras

from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.plan import PlanEvent
from keras_tfopt.training.batch import spec_of
from keras_tfopt.training.batch import static_rows
from keras_tfopt.training.failure import Remedy
from keras_tfopt.training.failure import StepFailure
from keras_tfopt.training.failure import describe
from keras_tfopt.training.failure import shape_key
from keras_tfopt.training.settings import AccumulationSettings

_logger = logging.getLogger("keras_tfopt")


class PlanControl:
    """Asks the remedies for another plan and puts it in force.

    Args:
        model: A compiled Keras model.
        settings: `AccumulationSettings`, whose plan is in force.
        work: String. What runs under the plan, for the log.

    Attributes:
        remedies: List of `Remedy`, asked in order.
    """

    def __init__(
        self, model: keras.Model, settings: AccumulationSettings, work: str
    ) -> None:
        self._model = model
        self._settings = settings
        self._work = work
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

    def register(self, remedy: Remedy) -> None:
        """Adds a remedy, behind those that are there."""
        self.remedies.append(remedy)
        self._is_prepared = False

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
        failure = self._failure(error, batch, tried)
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
        failure = self._failure(error, batch, tried)
        return any(remedy.drop(failure) for remedy in self.remedies)

    def review(self, batch: Any, steps: int) -> None:
        """Lets the remedies change the plan after good steps."""
        if not self.remedies:
            return
        spec = spec_of(batch)
        rows, key = static_rows(spec), shape_key(spec)
        for remedy in self.remedies:
            proposal = remedy.review(self.plan, rows, key, steps)
            if proposal is not None:
                self.change(*proposal)

    def _failure(
        self, error: Exception, batch: Any, tried: tuple[ExecutionPlan, ...]
    ) -> StepFailure:
        spec = spec_of(batch)
        return StepFailure(
            error, self.plan, static_rows(spec), shape_key(spec), tried
        )

    def change(
        self, plan: ExecutionPlan, reason: str, seconds: float = 0.0
    ) -> None:
        """Puts another plan in force, records it and logs one line.

        Args:
            plan: The new `ExecutionPlan`.
            reason: String. Why.
            seconds: Float. What the change cost. Defaults to 0.
        """
        optimizer = self._model.optimizer
        step = 0 if optimizer is None else int(optimizer.iterations)
        _logger.warning(
            "Step %d: %s changes from %s to %s, %.1f s lost: %s",
            step,
            self._work,
            describe(self.plan),
            describe(plan),
            seconds,
            reason,
        )
        self._settings.change_plan(plan, reason, step, seconds)
