"""The pure step: from a batch to gradients and new state, writing nothing."""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from keras_tfopt.accumulation import gradients as gradients_lib
from keras_tfopt.accumulation.batch_norm import Moments
from keras_tfopt.accumulation.batch_norm import empty_moments
from keras_tfopt.accumulation.batch_norm import merge_all_moments
from keras_tfopt.accumulation.batch_norm import updated_statistics
from keras_tfopt.accumulation.gradients import Gradient
from keras_tfopt.accumulation.microstep import Microstep
from keras_tfopt.accumulation.microstep import MicrostepResult
from keras_tfopt.accumulation.microstep import Share
from keras_tfopt.accumulation.microstep import read_values
from keras_tfopt.accumulation.split import Partition
from keras_tfopt.accumulation.split import Run
from keras_tfopt.accumulation.split import count_rows
from keras_tfopt.accumulation.split import take_rows
from keras_tfopt.devices import placements


class StepResult(NamedTuple):
    """Everything that a step is going to write.

    Attributes:
        gradients: One entry per trainable variable, for the optimizer.
        updates: New values of the variables in `updated`, in that order.
        logs: What `compute_metrics` returned where a model overrides it, else
            an empty tuple: the metrics then tell once they have their new
            values.
    """

    gradients: list[Gradient]
    updates: list[tf.Tensor]
    logs: Any


class WholeStep:
    """A step over a batch that is not split: Keras' own arithmetic.

    Args:
        microstep: The `Microstep`, or its traced function.
        logs: Nest of specs. The structure of `StepResult.logs`.
        definition: The `Microstep` itself.
    """

    def __init__(
        self, microstep: Any, logs: Any, definition: Microstep
    ) -> None:
        self._microstep = microstep
        self._logs = logs
        self.mode = definition.mode
        self.plan = definition.plan
        self.trainable = definition.trainable
        self.updated = definition.updated

    @property
    def graph(self) -> tf.Graph | None:
        """What was traced, or `None` where the step runs eagerly."""
        return getattr(self._microstep, "graph", None)

    def __call__(self, batch: Any) -> StepResult:
        """Runs the step on a batch."""
        weights = read_values(self.trainable)
        result = self._microstep(batch, weights, [], None)
        return StepResult(result.gradients, result.updates, result.logs)

    def empty_logs(self) -> Any:
        """Returns logs of zeros, of the structure of `StepResult.logs`."""
        return _zeros_like(self._logs)


class Accumulation(NamedTuple):
    """What micro-batches have contributed so far.

    Attributes:
        gradients: Sums, in float32 or wider.
        state: Values of the carried variables.
        moments: Merged `Moments`, as in `MicrostepResult`.
        logs: Logs of the last micro-batch, where a model makes its own.
    """

    gradients: list[Gradient]
    state: list[tf.Tensor]
    moments: list[list[Moments]]
    logs: Any


class SplitStep:
    """A step over one or more batches, each split into micro-batches.

    Args:
        microstep: The `Microstep`, or its traced function.
        like: `MicrostepResult` of tensors or specs. The structure of what the
            micro-step returns.
        definition: The `Microstep` itself.
    """

    def __init__(
        self, microstep: Any, like: MicrostepResult, definition: Microstep
    ) -> None:
        self._microstep = microstep
        self.like = like
        self._normalizers = definition.normalizers
        self.definition = definition
        self.carried = definition.updated
        self.mode = definition.mode
        self.plan = definition.plan
        self.trainable = definition.trainable
        self.updated = list(definition.updated)
        for layer in definition.normalizers:
            self.updated += [layer.moving_mean, layer.moving_variance]

    def __call__(self, batch: Any, partition: Partition) -> StepResult:
        """Runs the step on one batch."""
        share = Share(
            count_rows(batch),
            self.count_denominators(batch, partition),
            tf.constant(0),
        )
        total = self.accumulate(self.start(), batch, share, partition)
        return self.finish(total)

    def count_denominators(self, batch: Any, partition: Partition) -> tf.Tensor:
        """Returns what the losses of a batch are divided by.

        Masks are only known after the forward pass, so this is one; TensorFlow
        prunes what the denominators do not need.
        """
        size = self.like.denominators.shape[0]
        total = tf.zeros((size,))
        if size == 0:
            return total
        weights = read_values(self.trainable)
        state = self.start().state
        share = Share(count_rows(batch), tf.ones((size,)), tf.constant(0))

        def add(index: Any, start: Any, rows: Any, total: tf.Tensor) -> tuple:
            result = self._microstep(rows, weights, state, share)
            return (total + result.denominators,)

        for run in partition.runs():
            (total,) = _loop(add, (total,), batch, run)
        return total

    def start(self) -> Accumulation:
        """Returns the accumulation of no micro-batch."""
        return Accumulation(
            gradients_lib.zero_gradients(self.trainable, self.like.gradients),
            read_values(self.carried),
            [[empty_moments(m) for m in calls] for calls in self.like.moments],
            self.empty_logs(),
        )

    def accumulate(
        self,
        total: Accumulation,
        batch: Any,
        share: Share,
        partition: Partition,
    ) -> Accumulation:
        """Adds the micro-batches of one batch.

        Args:
            total: `Accumulation` of the batches before.
            batch: Nest of tensors.
            share: `Share`. Rows and denominators of all batches of the step,
                and the index of this batch's first row among them.
            partition: `Partition` of the batch.

        Returns:
            `Accumulation`.
        """
        weights = read_values(self.trainable)
        devices = placements(self.trainable)

        def add(
            index: Any,
            start: Any,
            rows: Any,
            gradients: Any,
            state: Any,
            moments: Any,
            logs: Any,
        ) -> tuple:
            own = share._replace(first_row=share.first_row + start)
            result = self._microstep(rows, weights, state, own)
            return (
                gradients_lib.add_to_loop(
                    gradients, index, result.gradients, devices
                ),
                result.updates,
                merge_all_moments(moments, result.moments),
                result.logs,
            )

        sums = total.gradients
        for run in partition.runs():
            carry = gradients_lib.loop_gradients(sums, run.count)
            carry, state, moments, logs = _loop(
                add, (carry, *total[1:]), batch, run
            )
            sums = gradients_lib.finish_loop(sums, carry)
            total = Accumulation(sums, state, moments, logs)
        return total

    def finish(self, total: Accumulation) -> StepResult:
        """Returns what the step is going to write."""
        updates = list(total.state)
        for layer, calls in zip(self._normalizers, total.moments, strict=True):
            updates += updated_statistics(layer, calls)
        return StepResult(
            gradients_lib.cast_gradients(total.gradients, self.trainable),
            updates,
            total.logs,
        )

    def empty_logs(self) -> Any:
        """Returns logs of zeros, of the structure of `StepResult.logs`."""
        return _zeros_like(self.like.logs)


def _loop(
    add: Callable[..., tuple], carry: tuple, batch: Any, run: Run | Partition
) -> tuple:
    """Calls `add(index, start, rows, *carry)` for each micro-batch."""

    def body(index: tf.Tensor, *carry: Any) -> tuple:
        start, size = run.bounds(index)
        rows = take_rows(batch, start, size)
        return (index + 1, *add(index, start, rows, *carry))

    # Iterations in parallel would hold the activations of several.
    result = tf.while_loop(
        lambda index, *_: index < run.count,
        body,
        (tf.constant(0), *carry),
        parallel_iterations=1,
        maximum_iterations=run.count,
    )
    return result[1:]


def _zeros_like(specs: Any) -> Any:
    return tf.nest.map_structure(
        lambda leaf: tf.zeros(leaf.shape, leaf.dtype), specs
    )
