"""Pure step and commit in one function of the batches that are held."""

from collections.abc import Callable
from typing import Any
import warnings

import keras
import tensorflow as tf

from keras_tfopt.accumulation import BranchWriteError
from keras_tfopt.accumulation import SplitStep
from keras_tfopt.accumulation import StepMode
from keras_tfopt.accumulation import StepResult
from keras_tfopt.accumulation import WholeStep
from keras_tfopt.accumulation import build_split_step
from keras_tfopt.accumulation import build_whole_step
from keras_tfopt.accumulation.split import Partition
from keras_tfopt.accumulation.split import check_rows
from keras_tfopt.accumulation.split import count_rows
from keras_tfopt.accumulation.split import partition_by_count
from keras_tfopt.accumulation.split import partition_by_size
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.batch import relax_rows
from keras_tfopt.training.batch import static_rows
from keras_tfopt.training.commit import CommitLog
from keras_tfopt.training.commit import commit
from keras_tfopt.training.step_loop import repeat_step
from keras_tfopt.training.stock_step import StockStepFunction


class StepFunction:
    """Runs one or more steps in one call.

    Args:
        model: A compiled Keras model.
        step: The `WholeStep` or `SplitStep`.
        pure: Callable `(batch, value)` that returns its `StepResult`.
        spec: Nest of the specs of a batch.
        capacity: Integer. Largest number of steps in a call.
        check: Callable that refuses a batch by raising, or `None`. Defaults to
            `None`.
        unmanaged: Variables that the pure step writes past Keras; they are put
            back when it fails. Defaults to none.
        compiled: The function inside of `pure` that XLA compiles, or `None`.
            Defaults to `None`.
    """

    def __init__(
        self,
        model: keras.Model,
        step: WholeStep | SplitStep,
        pure: Callable[..., StepResult],
        spec: Any,
        capacity: int,
        check: Callable[[Any], None] | None = None,
        unmanaged: tuple[tf.Variable, ...] = (),
        compiled: Any = None,
    ) -> None:
        self._check = check
        self.compiled = compiled
        self.capacity = capacity
        self._unmanaged = unmanaged
        self._log = log = CommitLog()
        self.settle = log.settle

        def run_one(batch: Any, value: tf.Tensor) -> Any:
            result = pure(batch, value)
            commit(model, step, result, log)
            return result.logs

        def run(batches: list[Any], count: tf.Tensor, value: tf.Tensor) -> Any:
            if tf.executing_eagerly():
                for batch in batches[: int(count)]:
                    logs = run_one(batch, value)
            elif capacity == 1:
                logs = run_one(batches[0], value)
            else:
                logs = repeat_step(
                    lambda batch: run_one(batch, value),
                    batches,
                    count,
                    step.empty_logs(),
                )
            return logs or model.get_metrics_result()

        self._run = as_function(run, model.run_eagerly)
        if not model.run_eagerly:
            # All batches fit the spec: no need to look for a trace each time,
            # which takes longer than a small step.
            scalar = tf.TensorSpec((), tf.int32)
            self._run = self._run.get_concrete_function(
                [spec] * capacity, scalar, scalar
            )

    @property
    def graph(self) -> tf.Graph | None:
        """What runs, or `None` where it runs eagerly."""
        return getattr(self._run, "graph", None)

    def __call__(self, batches: list[Any], value: tf.Tensor) -> Any:
        """Runs one step for each batch and returns the last logs.

        When it raises, `settle` tells how many steps are committed.

        Args:
            batches: List of nests of tensors, at most `capacity`.
            value: Int32 scalar. `accumulation_steps` or `microbatch_size`.

        Returns:
            Dict of the logs of the last step.
        """
        if self._check is not None:
            for batch in batches:
                self._check(batch)
        count = tf.constant(len(batches))
        missing = self.capacity - len(batches)
        # Not under our control inside the step, so put back if it fails.
        before = [tf.identity(variable) for variable in self._unmanaged]
        try:
            logs = self._run(batches + batches[-1:] * missing, count, value)
        except BaseException:
            for variable, saved in zip(self._unmanaged, before, strict=True):
                variable.assign(saved)
            raise
        self._log.expect(len(batches))
        return logs


def whole_step_function(
    model: keras.Model,
    spec: Any,
    batch: Any,
    plan: ExecutionPlan,
    mode: StepMode,
    capacity: int,
) -> StepFunction | StockStepFunction:
    """Makes the function for batches that are not split.

    Args:
        model: A compiled Keras model.
        spec: Nest of the specs of a batch.
        batch: The first batch.
        plan: The `ExecutionPlan`.
        mode: `StepMode`.
        capacity: Integer. Largest number of steps in a call.

    Returns:
        `StepFunction`, or Keras' own step for a model that writes variables in
        branches.
    """
    eager = model.run_eagerly
    example = batch if eager else spec
    try:
        step, effects = build_whole_step(model, example, eager, mode, plan)
    except BranchWriteError:
        warnings.warn(
            f"'{model.name}' writes a variable in a branch of a conditional, "
            "in a loop or in a `tf.function`. Its step runs as Keras makes "
            "it: one that fails may leave a trace and is not run again, and "
            "nothing is recomputed.",
            stacklevel=2,
        )
        return StockStepFunction(model, mode)
    jit_compile = plan.jit_compile
    if effects.writes and jit_compile:
        # XLA destroys the variables that a failing function writes.
        warnings.warn(
            f"The model writes {list(effects.writes)} past Keras. Its step "
            "runs without XLA.",
            stacklevel=2,
        )
        jit_compile = False
    compiled = as_compiled(step, jit_compile)
    return StepFunction(
        model,
        step,
        lambda batch, value: compiled(batch),
        spec,
        capacity,
        unmanaged=effects.variables,
        compiled=compiled if jit_compile else None,
    )


def split_step_function(
    model: keras.Model,
    spec: Any,
    batch: Any,
    plan: ExecutionPlan,
    mode: StepMode,
    capacity: int,
) -> StepFunction:
    """Makes the function for batches that are split into micro-batches.

    The number or size of micro-batches is an input, so that another one costs
    no retracing. Only XLA needs it, and the number of rows, fixed.

    Args:
        model: A compiled Keras model.
        spec: Nest of the specs of a batch.
        batch: The first batch.
        plan: The `ExecutionPlan`.
        mode: `StepMode`.
        capacity: Integer. Largest number of steps in a call.

    Returns:
        `StepFunction`.
    """
    step = split_step(model, spec, batch, mode, plan)
    pure = pure_split_function(step, plan)
    compiled = None
    if plan.jit_compile:
        partition = partition_function(plan)
        fixed = partition(static_rows(spec), split_number(plan))
        compiled = as_compiled(lambda batch: step(batch, fixed), True)

        def pure(batch: Any, value: tf.Tensor) -> StepResult:
            return compiled(batch)

    return StepFunction(
        model, step, pure, spec, capacity, check_rows, compiled=compiled
    )


def split_step(
    model: keras.Model,
    spec: Any,
    batch: Any,
    mode: StepMode,
    plan: ExecutionPlan,
) -> SplitStep:
    """Makes the pure step for batches of a spec, split anyhow."""
    check_rows(batch)
    eager = model.run_eagerly
    example = batch if eager else relax_rows(spec)
    weight = float(static_rows(spec) or 1)
    return build_split_step(model, example, eager, weight, mode, plan)


def pure_split_function(
    step: SplitStep, plan: ExecutionPlan
) -> Callable[[Any, tf.Tensor], StepResult]:
    """Returns the pure step as a function of batch and planned number.

    Args:
        step: The `SplitStep`.
        plan: `ExecutionPlan` that says whether number or size is given.
    """
    partition = partition_function(plan)

    def pure(batch: Any, value: tf.Tensor) -> StepResult:
        return step(batch, partition(count_rows(batch), value))

    return pure


def partition_function(plan: ExecutionPlan) -> Callable[..., Partition]:
    """Returns the function `(rows, number)` that partitions as planned."""
    if plan.microbatch_size is not None:
        return partition_by_size
    return partition_by_count


def split_number(plan: ExecutionPlan) -> int:
    """Returns the planned number or size of micro-batches."""
    return plan.microbatch_size or plan.accumulation_steps or 1


def as_compiled(step: Callable, jit_compile: bool) -> Callable:
    """Returns a pure step as XLA compiles it, or as it is."""
    if not jit_compile:
        return step
    return tf.function(step, jit_compile=True, autograph=False)


def as_function(run: Callable, run_eagerly: bool) -> Any:
    """Returns a function as a graph, or as it is."""
    if run_eagerly:
        return run
    return tf.function(run, autograph=False, reduce_retracing=True)
