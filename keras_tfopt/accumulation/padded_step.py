"""The pure step over batches whose rows are padded for XLA.

XLA compiles for one number of rows only. Here it compiles the forward and the
backward pass of one micro-batch of a fixed size, which all batches share. Rows
of padding count nowhere: denominators are counted, and metrics updated, outside
of what is compiled, on the real rows.
"""

from typing import Any
from typing import NamedTuple

import keras
import tensorflow as tf

from keras_tfopt.accumulation.gradients import Gradient
from keras_tfopt.accumulation.microstep import Microstep
from keras_tfopt.accumulation.microstep import MicrostepResult
from keras_tfopt.accumulation.microstep import Share
from keras_tfopt.accumulation.microstep import read_values
from keras_tfopt.accumulation.padding import RealRows
from keras_tfopt.accumulation.padding import masks_of
from keras_tfopt.accumulation.padding import pad_rows
from keras_tfopt.accumulation.padding import without_padding
from keras_tfopt.accumulation.pure_step import SplitStep
from keras_tfopt.accumulation.pure_step import StepResult
from keras_tfopt.accumulation.split import Partition
from keras_tfopt.accumulation.split import count_rows
from keras_tfopt.accumulation.split import partition_by_size


class PaddedPass(NamedTuple):
    """What XLA makes of a padded micro-batch.

    Attributes:
        gradients: One entry per trainable variable.
        updates: Values of the variables in `Microstep.updated`, before the
            metrics' turn.
        loss: The loss of the micro-batch, for the metric behind it.
        y_pred: Predictions, those of the padding included.
        masks: Nest of their Keras masks.
    """

    gradients: list[Gradient]
    updates: list[tf.Tensor]
    loss: tf.Tensor
    y_pred: Any
    masks: Any


def run_padded(
    definition: Microstep,
    size: int,
    data: Any,
    count: tf.Tensor,
    weights: list[tf.Tensor],
    state: list[tf.Tensor],
    share: Share,
) -> PaddedPass:
    """Runs the part of a micro-batch that XLA compiles.

    Args:
        definition: `Microstep`.
        size: Integer. Rows with the padding.
        data: Nest of tensors of so many rows.
        count: Int32 scalar. How many of them are real.
        weights: Values of the trainable variables.
        state: Values of the updated variables.
        share: `Share`.

    Returns:
        `PaddedPass`.
    """
    real = RealRows(count, size)
    scope, passed = definition.run(data, weights, state, share, real)
    return PaddedPass(
        passed.gradients,
        [scope.get_current_value(variable) for variable in definition.updated],
        passed.loss,
        passed.y_pred,
        masks_of(passed.y_pred),
    )


class PaddedMicrostep:
    """Stands in for a `Microstep` on micro-batches of any number of rows.

    Args:
        definition: `Microstep`.
        function: `run_padded` for the definition and the size, as XLA compiles
            it.
        size: Integer. Most rows; fewer are padded.
        filler: Int32 scalar. The row that padding repeats. Defaults to the last
            one.
    """

    def __init__(
        self,
        definition: Microstep,
        function: Any,
        size: int,
        filler: tf.Tensor | None = None,
    ) -> None:
        self._definition = definition
        self._function = function
        self.size = size
        self._filler = filler

    def with_filler(self, filler: tf.Tensor) -> "PaddedMicrostep":
        """Returns the same with padding that repeats another row."""
        return PaddedMicrostep(
            self._definition, self._function, self.size, filler
        )

    def run(
        self,
        data: Any,
        weights: list[tf.Tensor],
        state: list[tf.Tensor],
        share: Share,
    ) -> PaddedPass:
        """Runs what is compiled; for its arguments see `Microstep`."""
        rows = count_rows(data)
        padded = pad_rows(data, rows, self.size, self._filler)
        result = self._function(padded, rows, weights, state, share)
        return PaddedPass(*result)

    def __call__(
        self,
        data: Any,
        weights: list[tf.Tensor],
        state: list[tf.Tensor],
        share: Share,
    ) -> MicrostepResult:
        """Runs a micro-batch; see `Microstep`."""
        definition = self._definition
        passed = self.run(data, weights, state, share)
        real = RealRows(count_rows(data), self.size)
        y_pred = without_padding(passed.y_pred, passed.masks, real)
        scope = definition.scope(weights, passed.updates)
        with scope:
            logs = definition.track(data, passed.loss, y_pred)
        return MicrostepResult(
            passed.gradients,
            [scope.get_current_value(v) for v in definition.updated],
            [],
            # Counted by themselves, on the batch as it is.
            tf.zeros_like(share.denominators),
            logs,
        )


class PaddedStep(SplitStep):
    """A step over a batch whose micro-batches are padded to one size.

    Args:
        microstep: `PaddedMicrostep`.
        plain: `SplitStep` of the same model that pads nothing.
        is_split: Boolean. Whether there may be more than one micro-batch.
    """

    def __init__(
        self, microstep: PaddedMicrostep, plain: SplitStep, is_split: bool
    ) -> None:
        super().__init__(microstep, plain.like, plain.definition)
        self.plain = plain
        self.size = microstep.size
        self._is_split = is_split

    def with_filler(self, filler: tf.Tensor) -> "PaddedStep":
        """Returns the same step with padding that repeats another row."""
        microstep = self._microstep.with_filler(filler)
        return PaddedStep(microstep, self.plain, self._is_split)

    def partition(self, batch: Any) -> Partition:
        """Returns the micro-batches of a batch."""
        return partition_by_size(count_rows(batch), self.size)

    def count_denominators(self, batch: Any, partition: Partition) -> tf.Tensor:
        """Counts without padding, and without what XLA would not prune."""
        return self.plain.count_denominators(batch, partition)

    def __call__(self, batch: Any, partition: Partition) -> StepResult:
        """Runs the step on one batch."""
        if self._is_split:
            return super().__call__(batch, partition)
        # Sums of gradients would take as much memory as gradients.
        denominators = self.count_denominators(batch, partition)
        share = Share(count_rows(batch), denominators, tf.constant(0))
        result = self._microstep(batch, *self._values(), share)
        return StepResult(result.gradients, result.updates, result.logs)

    def look(self, batch: Any) -> PaddedPass:
        """Runs what XLA compiles on a micro-batch, to be looked at."""
        ones = tf.ones(self.like.denominators.shape)
        share = Share(count_rows(batch), ones, tf.constant(0))
        return self._microstep.run(batch, *self._values(), share)

    def _values(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        variables: tuple[list[keras.Variable], ...] = (
            self.trainable,
            self.carried,
        )
        weights, state = map(read_values, variables)
        return weights, state
