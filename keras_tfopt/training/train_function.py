"""What `fit` calls for each step: draws a batch and runs it under the plan."""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.batch import element_spec
from keras_tfopt.training.batch import relax_rows
from keras_tfopt.training.batch import spec_of
from keras_tfopt.training.batch import to_tensors
from keras_tfopt.training.step_function import GatheredStepFunction
from keras_tfopt.training.step_function import SplitStepFunction
from keras_tfopt.training.step_function import WholeStepFunction
from keras_tfopt.training.step_function import split_value


class TrainFunction:
    """Stands in for `model.train_function`.

    Batches are drawn outside of the compiled function: a step that fails has
    not lost its batch.

    Args:
        model: A compiled Keras model with a `plan`.
        gather_steps: Integer. Delivered batches that make one update.
    """

    def __init__(self, model: keras.Model, gather_steps: int) -> None:
        self._model = model
        self._gather_steps = gather_steps
        self._functions: dict[Any, Any] = {}
        self._values: dict[ExecutionPlan, tf.Tensor] = {}
        self._gathered: list[Any] = []
        self._gathered_spec: Any = None
        self._logs: Any = {}

    def __call__(self, iterator: Iterator) -> Any:
        """Runs `steps_per_execution` steps and returns the last logs.

        Raises:
            StopIteration: If the iterator is exhausted.
        """
        is_dataset = isinstance(iterator, tf.data.Iterator)
        for index in range(self._model.steps_per_execution):
            try:
                batch = to_tensors(next(iterator))
            except (StopIteration, tf.errors.OutOfRangeError):
                if index == 0:
                    raise StopIteration from None
                break
            if is_dataset:
                spec = element_spec(iterator)
            else:
                spec = relax_rows(spec_of(batch))
            self._logs = self._deliver(batch, spec)
        if not is_dataset:
            # `train_on_batch` has no epoch whose end could flush.
            self.flush()
        return self._logs

    def flush(self) -> bool:
        """Makes an update of the batches that wait for others.

        Returns:
            Boolean. Whether there were any.
        """
        if not self._gathered:
            return False
        batches, self._gathered = self._gathered, []
        function = self._function(
            GatheredStepFunction, self._gathered_spec, batches[0]
        )
        self._logs = function(batches, self._value())
        return True

    def end_epoch(self, logs: Any) -> Any:
        """Flushes at the end of an epoch and returns its last logs.

        Args:
            logs: What `fit` took for the last logs. Logs of another function
                mean that no epoch of training has ended.
        """
        if logs is self._logs:
            self.flush()
            logs, self._logs = self._logs, {}
        return logs

    def reset(self) -> None:
        """Forgets what an interrupted `fit` left behind."""
        self._gathered = []
        self._logs = {}

    def _deliver(self, batch: Any, spec: Any) -> Any:
        plan = self._model.plan
        if self._gather_steps > 1:
            self._gathered.append(batch)
            self._gathered_spec = spec
            if len(self._gathered) == self._gather_steps:
                self.flush()
            return self._logs
        if not plan.is_split:
            return self._function(WholeStepFunction, spec, batch)(batch)
        function = self._function(SplitStepFunction, spec, batch)
        return function(batch, self._value())

    def _function(self, kind: type, spec: Any, batch: Any) -> Any:
        plan = self._model.plan
        if plan.jit_compile and plan.is_split and kind is SplitStepFunction:
            spec = spec_of(batch)
            key = (kind, plan, repr(spec))
        else:
            by_size = plan.microbatch_size is not None
            key = (kind, by_size, plan.jit_compile, repr(spec))
        if key not in self._functions:
            if kind is WholeStepFunction:
                self._functions[key] = kind(
                    self._model, spec, batch, plan.jit_compile
                )
            else:
                self._functions[key] = kind(self._model, spec, batch, plan)
        return self._functions[key]

    def _value(self) -> tf.Tensor:
        plan = self._model.plan
        if plan not in self._values:
            self._values[plan] = split_value(plan)
        return self._values[plan]
