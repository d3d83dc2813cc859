"""What `fit` calls for each step: draws batches and runs them as planned."""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt.accumulation.split import check_rows
from keras_tfopt.training.batch import relax_rows
from keras_tfopt.training.batch import spec_of
from keras_tfopt.training.batch import to_tensors
from keras_tfopt.training.batch import without_optionals
from keras_tfopt.training.gathered_step import GatheredStepFunction
from keras_tfopt.training.step_function import split_number
from keras_tfopt.training.step_function import split_step_function
from keras_tfopt.training.step_function import whole_step_function


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
        self._gathered: list[Any] = []
        self._functions: dict[Any, Any] = {}
        self._values: dict[int, tf.Tensor] = {}
        self._raw_spec: Any = None
        self._spec: Any = None
        self._spec_key = ""
        self._logs: Any = {}

    def __call__(self, iterator: Iterator) -> Any:
        """Runs `steps_per_execution` steps and returns the last logs.

        Raises:
            StopIteration: If the iterator is exhausted.
        """
        batches = self._draw(iterator)
        is_dataset = isinstance(iterator, tf.data.Iterator)
        if is_dataset:
            self._set_spec(iterator.element_spec, without_optionals)
        else:
            self._set_spec(spec_of(batches[0]), relax_rows)
        if self._gather_steps > 1:
            self._gather(batches)
        else:
            self._logs = self._run(batches)
        if not is_dataset:
            # `train_on_batch` has no epoch whose end could flush.
            self.flush()
        return self._logs

    def flush(self) -> None:
        """Makes an update of the batches that wait for others, if any do."""
        if not self._gathered:
            return
        batches, self._gathered = self._gathered, []
        plan = self._model.plan
        key = ("gathered", plan.microbatch_size is None, self._spec_key)
        if key not in self._functions:
            self._functions[key] = GatheredStepFunction(
                self._model, self._spec, batches[0], plan
            )
        self._logs = self._functions[key](batches, self._value())

    def end_epoch(self, logs: Any) -> Any:
        """Flushes at the end of an epoch and returns its last logs.

        Args:
            logs: What `fit` takes for the last logs. Logs of another function
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

    def _draw(self, iterator: Iterator) -> list[Any]:
        batches = []
        try:
            while len(batches) < self._model.steps_per_execution:
                batches.append(to_tensors(next(iterator)))
        except (StopIteration, tf.errors.OutOfRangeError):
            if not batches:
                raise StopIteration from None
        if self._model.plan.is_split or self._gather_steps > 1:
            for batch in batches:
                check_rows(batch)
        return batches

    def _gather(self, batches: list[Any]) -> None:
        for batch in batches:
            self._gathered.append(batch)
            if len(self._gathered) == self._gather_steps:
                self.flush()

    def _run(self, batches: list[Any]) -> Any:
        plan = self._model.plan
        if plan.is_split and plan.jit_compile:
            # XLA compiles for the rows of one batch.
            for batch in batches:
                self._set_spec(spec_of(batch), lambda spec: spec)
                logs = self._function(batch, 1)([batch], self._value())
            return logs
        capacity = self._model.steps_per_execution
        return self._function(batches[0], capacity)(batches, self._value())

    def _function(self, batch: Any, capacity: int) -> Any:
        plan = self._model.plan
        if plan.is_split and plan.jit_compile:
            key = (plan, self._spec_key)
        else:
            by_size = plan.microbatch_size is not None
            key = (plan.is_split, by_size, plan.jit_compile, self._spec_key)
        if key not in self._functions:
            make = split_step_function if plan.is_split else whole_step_function
            self._functions[key] = make(
                self._model, self._spec, batch, plan, capacity
            )
        return self._functions[key]

    def _set_spec(self, raw_spec: Any, convert: Any) -> None:
        if raw_spec is self._raw_spec:
            return
        self._raw_spec = raw_spec
        self._spec = convert(raw_spec)
        self._spec_key = repr(self._spec)

    def _value(self) -> tf.Tensor:
        number = split_number(self._model.plan)
        if number not in self._values:
            self._values[number] = tf.constant(number)
        return self._values[number]
