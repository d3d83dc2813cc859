"""Pure step and commit in one function of a batch."""

from collections.abc import Callable
from typing import Any
import warnings

import keras
import tensorflow as tf

from keras_tfopt.accumulation import SplitStep
from keras_tfopt.accumulation import StepResult
from keras_tfopt.accumulation import build_split_step
from keras_tfopt.accumulation import build_whole_step
from keras_tfopt.accumulation.microstep import Share
from keras_tfopt.accumulation.split import Partition
from keras_tfopt.accumulation.split import check_rows
from keras_tfopt.accumulation.split import count_rows
from keras_tfopt.accumulation.split import partition_by_count
from keras_tfopt.accumulation.split import partition_by_size
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.batch import relax_rows
from keras_tfopt.training.batch import static_rows
from keras_tfopt.training.commit import commit


class WholeStepFunction:
    """Runs steps over batches that are not split.

    Args:
        model: A compiled Keras model.
        spec: Nest of the specs of a batch.
        batch: The first batch.
        jit_compile: Boolean. Whether XLA compiles the pure step.
    """

    def __init__(
        self, model: keras.Model, spec: Any, batch: Any, jit_compile: bool
    ) -> None:
        eager = model.run_eagerly
        step, effects = build_whole_step(model, batch if eager else spec, eager)
        self._unmanaged = effects.variables
        if effects.writes and jit_compile:
            # XLA destroys the variables that a failing function writes.
            warnings.warn(
                f"The model writes {list(effects.writes)} past Keras. Its "
                "step runs without XLA.",
                stacklevel=2,
            )
            jit_compile = False
        pure = _compiled(step, jit_compile)

        def run(batch: Any) -> Any:
            return commit(model, step.trainable, step.updated, pure(batch))

        self._run = _function(run, eager)
        if not eager:
            self._run.get_concrete_function(spec)

    def __call__(self, batch: Any) -> Any:
        """Runs a step and returns its logs."""
        if not self._unmanaged:
            return self._run(batch)
        # Not under our control inside the step, so put back if it fails.
        before = [tf.identity(variable) for variable in self._unmanaged]
        try:
            return self._run(batch)
        except BaseException:
            for variable, value in zip(self._unmanaged, before, strict=True):
                variable.assign(value)
            raise


class SplitStepFunction:
    """Runs steps over batches that are split into micro-batches.

    The number or size of micro-batches is an input, so that another one costs
    no retracing. Only XLA needs it, and the number of rows, fixed.

    Args:
        model: A compiled Keras model.
        spec: Nest of the specs of a batch.
        batch: The first batch.
        plan: The `ExecutionPlan`.
    """

    def __init__(
        self, model: keras.Model, spec: Any, batch: Any, plan: ExecutionPlan
    ) -> None:
        step = _build_split(model, spec, batch)
        partition = _partition_function(plan)
        if plan.jit_compile:
            fixed = partition(static_rows(spec), _split_value(plan))
            pure = _compiled(lambda batch: step(batch, fixed), True)
        else:
            pure = None

        def run(batch: Any, value: tf.Tensor) -> Any:
            if pure is None:
                result = step(batch, partition(count_rows(batch), value))
            else:
                result = pure(batch)
            return commit(model, step.trainable, step.updated, result)

        self._run = _function(run, model.run_eagerly)
        if not model.run_eagerly:
            scalar = tf.TensorSpec((), tf.int32)
            self._run.get_concrete_function(spec, scalar)

    def __call__(self, batch: Any, value: tf.Tensor) -> Any:
        """Runs a step and returns its logs.

        Args:
            batch: Nest of tensors.
            value: Int32 scalar. `accumulation_steps` or `microbatch_size`.
        """
        check_rows(batch)
        return self._run(batch, value)


class GatheredStepFunction:
    """Runs one step over several delivered batches, as if they were one.

    The batches may differ in rows and in padding, so they are visited one by
    one; each may be split in turn. All of them must be there before the first
    is computed: what a loss is divided by is only known with the last.

    Args:
        model: A compiled Keras model.
        spec: Nest of the specs of a batch.
        batch: The first batch.
        plan: The `ExecutionPlan` for each of the batches.
    """

    def __init__(
        self, model: keras.Model, spec: Any, batch: Any, plan: ExecutionPlan
    ) -> None:
        self._step = step = _build_split(model, spec, batch)
        partition = _partition_function(plan)

        def count(batch: Any, value: tf.Tensor) -> Share:
            rows = count_rows(batch)
            parts = partition(rows, value)
            return Share(rows, step.count_denominators(batch, parts))

        def accumulate(
            total: Any, batch: Any, share: Share, value: tf.Tensor
        ) -> Any:
            parts = partition(count_rows(batch), value)
            return step.accumulate(total, batch, share, parts)

        def finish(total: Any) -> Any:
            result = step.finish(total)
            return commit(model, step.trainable, step.updated, result)

        eager = model.run_eagerly
        self._count = _function(count, eager)
        self._accumulate = _function(accumulate, eager)
        self._finish = _function(finish, eager)

    def __call__(self, batches: list[Any], value: tf.Tensor) -> Any:
        """Runs a step over batches and returns its logs."""
        for batch in batches:
            check_rows(batch)
        shares = [self._count(batch, value) for batch in batches]
        share = Share(*(tf.add_n(list(parts)) for parts in zip(*shares)))
        total = self._step.start()
        for batch in batches:
            total = self._accumulate(total, batch, share, value)
        return self._finish(total)


def split_value(plan: ExecutionPlan) -> tf.Tensor:
    """Returns the number or size of micro-batches as a tensor."""
    return tf.constant(_split_value(plan))


def _split_value(plan: ExecutionPlan) -> int:
    return plan.microbatch_size or plan.accumulation_steps or 1


def _partition_function(plan: ExecutionPlan) -> Callable[..., Partition]:
    if plan.microbatch_size is not None:
        return partition_by_size
    return partition_by_count


def _build_split(model: keras.Model, spec: Any, batch: Any) -> SplitStep:
    eager = model.run_eagerly
    example = batch if eager else relax_rows(spec)
    return build_split_step(
        model, example, eager, float(static_rows(spec) or 1)
    )


def _compiled(
    step: Callable[..., StepResult], jit_compile: bool
) -> Callable[..., StepResult]:
    if not jit_compile:
        return step
    return tf.function(step, jit_compile=True, autograph=False)


def _function(run: Callable, run_eagerly: bool) -> Any:
    if run_eagerly:
        return run
    return tf.function(run, autograph=False, reduce_retracing=True)
