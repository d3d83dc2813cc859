"""One step over several delivered batches."""

import dataclasses
from typing import Any
import warnings

import keras
import tensorflow as tf

from keras_tfopt.accumulation import StepMode
from keras_tfopt.accumulation.microstep import Share
from keras_tfopt.accumulation.split import check_rows
from keras_tfopt.accumulation.split import count_rows
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.commit import CommitLog
from keras_tfopt.training.commit import commit
from keras_tfopt.training.step_function import as_function
from keras_tfopt.training.step_function import partition_function
from keras_tfopt.training.step_function import split_step


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
        mode: `StepMode`.
    """

    capacity = 1
    compiled = None

    def __init__(
        self,
        model: keras.Model,
        spec: Any,
        batch: Any,
        plan: ExecutionPlan,
        mode: StepMode,
    ) -> None:
        if plan.jit_compile:
            warnings.warn(
                "Batches that `gather_steps` gathers run without XLA: they may "
                "differ in shape.",
                stacklevel=2,
            )
        self._step = step = split_step(
            model,
            spec,
            batch,
            mode,
            dataclasses.replace(plan, jit_compile=False),
        )
        self._log = log = CommitLog()
        self.settle = log.settle
        partition = partition_function(plan)

        def measure(batch: Any, value: tf.Tensor) -> Share:
            rows = count_rows(batch)
            parts = partition(rows, value)
            denominators = step.count_denominators(batch, parts)
            return Share(rows, denominators, tf.constant(0))

        def accumulate(
            total: Any, batch: Any, share: Share, value: tf.Tensor
        ) -> Any:
            parts = partition(count_rows(batch), value)
            return step.accumulate(total, batch, share, parts)

        def finish(total: Any) -> Any:
            result = step.finish(total)
            commit(model, step, result, log)
            return result.logs or model.get_metrics_result()

        eager = model.run_eagerly
        self._measure = as_function(measure, eager)
        self._accumulate = as_function(accumulate, eager)
        self._finish = as_function(finish, eager)

    def __call__(self, windows: list[list[Any]], value: tf.Tensor) -> Any:
        """Runs one step over the batches of a window and returns its logs.

        Args:
            windows: List with one list of nests of tensors.
            value: Int32 scalar. `accumulation_steps` or `microbatch_size`.

        Returns:
            Dict of the logs of the step.
        """
        (batches,) = windows
        for batch in batches:
            check_rows(batch)
        shares = [self._measure(batch, value) for batch in batches]
        share = Share(
            tf.add_n([part.rows for part in shares]),
            tf.add_n([part.denominators for part in shares]),
            tf.constant(0),
        )
        total = self._step.start()
        for batch, part in zip(batches, shares, strict=True):
            total = self._accumulate(total, batch, share, value)
            share = share._replace(first_row=share.first_row + part.rows)
        logs = self._finish(total)
        self._log.expect(1)
        return logs
