"""The functions that a model's steps were compiled to so far."""

from collections.abc import Callable
import dataclasses
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt.accumulation import StepMode
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.batch import relax_rows
from keras_tfopt.training.batch import spec_of
from keras_tfopt.training.batch import without_optionals
from keras_tfopt.training.gathered_step import GatheredStepFunction
from keras_tfopt.training.placement import placement_of
from keras_tfopt.training.step_factory import step_factory
from keras_tfopt.training.step_function import split_number


class StepFunctions:
    """Makes and keeps the functions of a model, one per kind, plan and spec.

    Args:
        model: A compiled Keras model.
        mode: `StepMode`.

    Attributes:
        convert: Callable that makes tensors of what an iterator delivers.
        rows_of: Callable that returns the rows of what `convert` made.
        describe: Callable from a batch to its rows and its `shape_key`, by
            which remedies decide.
    """

    def __init__(self, model: keras.Model, mode: StepMode) -> None:
        self._model = model
        self._factory = step_factory(model)
        self._placement = placement_of(model)
        self.convert = self._factory.convert
        self.rows_of = self._factory.rows_of
        self.describe = self._factory.describe
        self._mode = mode
        # Callbacks that check results come and go with each `fit`.
        self._by_check: dict[Any, dict[Any, Any]] = {}
        self._functions = self._by_check.setdefault(None, {})
        self._values: dict[int, tf.Tensor] = {}
        self._raw_spec: Any = None
        self._spec: Any = None
        self._spec_key = ""

    def observe(self, iterator: Any, batch: Any) -> None:
        """Takes the spec of the batches from where they come from."""
        if isinstance(iterator, tf.data.Iterator):
            raw_spec, convert = iterator.element_spec, without_optionals
        else:
            raw_spec, convert = spec_of(batch), relax_rows
        if raw_spec is not self._raw_spec:
            self._raw_spec = raw_spec
            self._spec = convert(raw_spec)
            self._spec_key = repr(self._spec)

    def set_check(self, check: Callable | None) -> None:
        """Sets what looks at results before they are written.

        Args:
            check: As for `StepMode`.
        """
        self._mode = dataclasses.replace(self._mode, check=check)
        self._functions = self._by_check.setdefault(check, {})

    def value(self, plan: ExecutionPlan) -> tf.Tensor:
        """Returns the planned number or size of micro-batches as a tensor."""
        number = split_number(plan)
        if number not in self._values:
            self._values[number] = tf.constant(number)
        return self._values[number]

    def steps(self, plan: ExecutionPlan, batch: Any) -> Any:
        """Returns the function that runs steps under a plan.

        Args:
            plan: The `ExecutionPlan`.
            batch: The batch to run first.

        Returns:
            `StepFunction`, or a `StockStepFunction` in its place.
        """
        self._place(plan)
        spec, bound = self._spec, self._spec_key
        if self._factory.is_shape_bound(plan):
            spec = spec_of(batch)
            bound = f"{split_number(plan)} {spec!r}"
        key = (
            plan.is_split,
            _is_by_size(plan),
            plan.jit_compile,
            plan.padded_rows,
            *self._memory_key(plan),
            bound,
        )
        if key not in self._functions:
            self._functions[key] = self._factory.make(
                spec, batch, plan, self._mode
            )
        return self._functions[key]

    def gathered(
        self, plan: ExecutionPlan, window: list[Any]
    ) -> GatheredStepFunction:
        """Returns the function that runs one step over several batches.

        Args:
            plan: The `ExecutionPlan` for each batch.
            window: The batches to run first.

        Returns:
            `GatheredStepFunction`.
        """
        self._place(plan)
        kind = "gathered", _is_by_size(plan)
        key = (*kind, *self._memory_key(plan), self._spec_key)
        if key not in self._functions:
            self._functions[key] = GatheredStepFunction(
                self._model, self._spec, window[0], plan, self._mode
            )
        return self._functions[key]

    def _place(self, plan: ExecutionPlan) -> None:
        # Evaluation runs beside training, and has no plan for variables.
        if self._mode.differentiates:
            self._placement.follow(plan)

    def _memory_key(self, plan: ExecutionPlan) -> tuple:
        return plan.remat, plan.offload, self._placement.version


def _is_by_size(plan: ExecutionPlan) -> bool:
    return plan.microbatch_size is not None
