"""The guarded step: what `fit` calls, and what it does when a step fails."""

from collections.abc import Callable
from collections.abc import Iterator
import time
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt.accumulation import TRAINING
from keras_tfopt.accumulation import CheckSeries
from keras_tfopt.accumulation import StepMode
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.batch_drawer import BatchDrawer
from keras_tfopt.training.failure import StepReport
from keras_tfopt.training.plan_control import PlanControl
from keras_tfopt.training.settings import AccumulationSettings
from keras_tfopt.training.step_functions import StepFunctions


class GuardedStep:
    """Stands in for `model.train_function` or `model.test_function`.

    Batches are drawn outside of the compiled function and held until they are
    committed. When a step fails, nothing of it has been written; the remedies
    are asked in order for another plan, and the same batch runs again.

    Args:
        model: A compiled Keras model.
        settings: `AccumulationSettings`, whose plan is in force.
        mode: `StepMode`. Defaults to `TRAINING`.

    Attributes:
        control: `PlanControl` that the remedies register with.
        checks: Tuple of what looks at results, as for `StepMode`.
    """

    def __init__(
        self,
        model: keras.Model,
        settings: AccumulationSettings,
        mode: StepMode = TRAINING,
    ) -> None:
        self._model = model
        self._settings = settings
        self._functions = StepFunctions(model, mode)
        self.control = PlanControl(
            model, settings, mode.name, self._functions.describe
        )
        self._draw = BatchDrawer(self._functions.convert)
        self.checks: tuple[Callable, ...] = ()
        self._gathered: list[Any] = []
        self._logs: Any = {}

    def __call__(self, iterator: Iterator) -> Any:
        """Runs `steps_per_execution` steps and returns the last logs.

        Raises:
            StopIteration: If the iterator is exhausted.
        """
        batches = self._draw(iterator, self._model.steps_per_execution)
        self._functions.observe(iterator, batches[0])
        if self.control.plan.gathers:
            self._gather(batches)
        else:
            # The plan may have gathered until now.
            self.flush()
            self._run(batches, self._functions.steps)
        if not isinstance(iterator, tf.data.Iterator):
            # `train_on_batch` has no epoch whose end could flush.
            self.flush()
        return self._logs

    def flush(self) -> None:
        """Makes an update of the batches that wait for others, if any do."""
        if self._gathered:
            window, self._gathered = self._gathered, []
            self._run([window], self._functions.gathered)

    def get_state(self) -> tuple[dict[str, Any], list[Any]]:
        """Returns the plan's state and the batches that wait for others."""
        return self._settings.get_state(), list(self._gathered)

    def set_state(self, plan: dict[str, Any], waiting: list[Any]) -> None:
        """Puts back what `get_state` returned, at the start of a step."""
        self._settings.set_state(plan)
        self._gathered = waiting
        self._logs = {}
        if waiting:
            # There may be no batch left to take the spec from.
            self._functions.observe(None, waiting[0])

    @property
    def wait_seconds(self) -> float:
        """Time that drawing batches took so far."""
        return self._draw.seconds

    def add_check(self, check: Callable) -> None:
        """Adds what looks at results before they are written.

        Args:
            check: As for `StepMode`.
        """
        self._set_checks((*self.checks, check))

    def remove_check(self, check: Callable) -> None:
        """Takes a check out, if it is there."""
        self._set_checks(tuple(c for c in self.checks if c is not check))

    def _set_checks(self, checks: tuple[Callable, ...]) -> None:
        self.checks = checks
        self._functions.set_check(CheckSeries(checks) if checks else None)

    def end_epoch(self, logs: Any) -> Any:
        """Flushes at the end of an epoch and returns its last logs.

        Args:
            logs: What `fit` takes for the last logs. Logs of another function
                mean that no epoch of training has ended.
        """
        # A run that is restored behind its last batch has no logs yet.
        if logs is self._logs or logs == self._logs == {}:
            self.flush()
            logs, self._logs = self._logs, {}
        return logs

    def reset(self) -> None:
        """Forgets what an interrupted `fit` left behind."""
        self._gathered = []
        self._logs = {}
        self.control.clear()
        self._set_checks(())

    def _gather(self, batches: list[Any]) -> None:
        for batch in batches:
            self._gathered.append(batch)
            if len(self._gathered) >= (self.control.plan.gather_steps or 1):
                self.flush()

    def _run(self, units: list[Any], select: Callable) -> None:
        """Runs one step for each unit: a batch, or a window of batches."""
        is_gathered = select == self._functions.gathered
        self.control.prepare(units[0][0] if is_gathered else units[0])
        tried: tuple[ExecutionPlan, ...] = ()
        while units:
            plan = self.control.plan_for(units[0])
            start = time.perf_counter()
            function, held = None, units
            try:
                function = select(plan, units[0])
                held = self.control.alike(units[: function.capacity], plan)
                self._logs = function(held, self._functions.value(plan))
            except BaseException as error:
                done = 0 if function is None else function.settle(error)
                if not isinstance(error, Exception) or done == len(held):
                    raise
                units, tried = units[done:], (*(() if done else tried), plan)
                if self.control.drop(error, units[0], tried):
                    units, tried = units[1:], ()
                elif not self.control.recover(error, units[0], tried, start):
                    raise
            else:
                seconds = time.perf_counter() - start
                self.control.observe(
                    StepReport(
                        plan,
                        held[-1],
                        len(held),
                        seconds,
                        function,
                        held[0] if is_gathered else held,
                        self._functions.rows_of,
                    )
                )
                units, tried = units[len(held) :], ()
                self.control.review(held[-1], len(held))
