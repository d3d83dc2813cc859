"""A model's own step, in parts where memory is short."""

from collections.abc import Callable
from collections.abc import Iterator
import time
from typing import Any
import warnings

import keras
import tensorflow as tf

from keras_tfopt.accumulation.purity import find_effects
from keras_tfopt.accumulation.split import check_rows
from keras_tfopt.accumulation.split import take_rows
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.batch import spec_of
from keras_tfopt.training.batch import static_rows
from keras_tfopt.training.batch_drawer import BatchDrawer
from keras_tfopt.training.plan_control import PlanControl
from keras_tfopt.training.settings import AccumulationSettings


class GuardedOwnStep:
    """Stands in for the function of an overridden `train_step`.

    Nobody knows what such a step does with a batch, so it cannot be split
    exactly: each part is a step of its own, with its own update. What a step
    writes is put back when it fails, and the part runs again in smaller ones.

    Args:
        model: A compiled Keras model that does not run eagerly.
        step: The bound `train_step` or `test_step`.
        settings: `AccumulationSettings`, whose plan is in force.
        work: String. What the step does, for the log.

    Attributes:
        control: `PlanControl` that the remedies register with.
    """

    def __init__(
        self,
        model: keras.Model,
        step: Callable[[Any], Any],
        settings: AccumulationSettings,
        work: str,
    ) -> None:
        self._model = model
        self._work = work
        self._draw = BatchDrawer()
        self._run = tf.function(
            step,
            autograph=False,
            reduce_retracing=True,
            jit_compile=bool(model.jit_compile),
        )
        self._written: dict[str, tuple[tf.Variable, ...]] = {}
        self._is_announced = False
        self.control = PlanControl(model, settings, work)

    def __call__(self, iterator: Iterator) -> Any:
        """Runs `steps_per_execution` batches and returns the last logs.

        Raises:
            StopIteration: If the iterator is exhausted.
        """
        for batch in self._draw(iterator, self._model.steps_per_execution):
            self.control.prepare(batch)
            logs = self._run_parts(batch)
            self.control.review(batch, 1)
        return logs

    @property
    def wait_seconds(self) -> float:
        """Time that drawing batches took so far."""
        return self._draw.seconds

    def reset(self) -> None:
        """Forgets what an interrupted `fit` left behind."""
        self.control.clear()

    def _run_parts(self, batch: Any) -> Any:
        rows = static_rows(spec_of(batch)) or 1
        done = 0
        tried: tuple[ExecutionPlan, ...] = ()
        while done < rows:
            plan = self.control.plan
            size = min(plan.rows_of_microbatch(rows), rows - done)
            start = time.perf_counter()
            try:
                logs = self._run_part(batch, done, size, rows)
            except Exception as error:
                tried += (plan,)
                if not self.control.recover(error, batch, tried, start):
                    raise
                self._announce()
            else:
                done += size
                tried = ()
        return logs

    def _run_part(self, batch: Any, start: int, size: int, rows: int) -> Any:
        if size < rows:
            check_rows(batch)
            batch = take_rows(batch, start, size)
        # A variable that is held is copied when it is written, and its buffer
        # is not given to XLA.
        held = [(v, v.read_value()) for v in self._variables(batch)]
        try:
            return self._run(batch)
        except BaseException:
            for variable, value in held:
                variable.assign(value)
            raise

    def _variables(self, batch: Any) -> tuple[tf.Variable, ...]:
        """Returns what the step writes for batches like this one."""
        key = repr(spec_of(batch))
        if key not in self._written:
            trace = self._run.get_concrete_function(batch)
            self._written[key] = find_effects(trace).variables
        return self._written[key]

    def _announce(self) -> None:
        if self._is_announced:
            return
        self._is_announced = True
        warnings.warn(
            f"'{self._model.name}' has a step of its own, which cannot be "
            f"split exactly. From now on its {self._work} runs on parts of a "
            "batch, each with an update of its own.",
            stacklevel=2,
        )
