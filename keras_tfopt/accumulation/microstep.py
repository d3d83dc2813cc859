"""One micro-batch: forward, loss, gradients, metrics, and nothing written."""

from collections.abc import Callable
import contextlib
import dataclasses
from typing import Any
from typing import NamedTuple

import keras
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.accumulation.batch_norm import Moments
from keras_tfopt.accumulation.batch_norm import captured_moments
from keras_tfopt.accumulation.gradients import Gradient
from keras_tfopt.accumulation.losses import MicrobatchLoss
from keras_tfopt.accumulation.losses import replaced_compile_loss
from keras_tfopt.accumulation.losses import summed_activity_losses
from keras_tfopt.accumulation.padding import RealRows
from keras_tfopt.accumulation.remat import rematerialized
from keras_tfopt.accumulation.scope import RecordingScope
from keras_tfopt.accumulation.split import count_rows
from keras_tfopt.devices import at
from keras_tfopt.devices import placements
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.rows import RowPosition
from keras_tfopt.rows import rows_at


class Share(NamedTuple):
    """What a micro-batch must know of the batch that it belongs to.

    Attributes:
        rows: Int32 scalar. Rows of the whole batch.
        denominators: Float32 vector. What the loss of each output is divided
            by, over the whole batch.
        first_row: Int32 scalar. Index of the micro-batch's first row in the
            whole batch.
    """

    rows: tf.Tensor
    denominators: tf.Tensor
    first_row: tf.Tensor


class MicrostepResult(NamedTuple):
    """What a micro-batch contributes to a step.

    Attributes:
        gradients: One entry per trainable variable.
        updates: New values of the variables that the forward pass wrote.
        moments: `Moments` of each call of each merged normalization layer.
        denominators: Float32 vector. Local denominators of the losses.
        logs: What `compute_metrics` returned where the model overrides it,
            else an empty tuple.
    """

    gradients: list[Gradient]
    updates: list[tf.Tensor]
    moments: list[list[Moments]]
    denominators: tf.Tensor
    logs: Any


class Pass(NamedTuple):
    """What a forward and a backward pass leave to the metrics.

    Attributes:
        gradients: One entry per trainable variable.
        moments: As in `MicrostepResult`.
        denominators: As in `MicrostepResult`.
        loss: The loss, for the metric behind it.
        y_pred: Predictions.
    """

    gradients: list[Gradient]
    moments: list[list[Moments]]
    denominators: tf.Tensor
    loss: tf.Tensor
    y_pred: Any


@dataclasses.dataclass(frozen=True)
class StepMode:
    """What a step is for.

    Attributes:
        name: String, for messages.
        training: Boolean. Whether layers run as in training.
        differentiates: Boolean. Whether there are gradients to apply.
        check: Callable `(step, result)` that looks at what a step is going to
            write. It returns operations that fail if it must not be written.
            Its method `look_back(step)`, if it has one, is called behind the
            writes. Defaults to `None`.
    """

    name: str
    training: bool
    differentiates: bool
    check: Callable[[Any, Any], list[tf.Operation]] | None = None


@dataclasses.dataclass(frozen=True)
class CheckSeries:
    """Several checks as one; equal to one of the same checks.

    Attributes:
        checks: Tuple of callables, as for `StepMode`.
    """

    checks: tuple[Callable[[Any, Any], list[tf.Operation]], ...]

    def __call__(self, step: Any, result: Any) -> list[tf.Operation]:
        """Returns the operations of all checks."""
        return [op for check in self.checks for op in check(step, result)]

    def look_back(self, step: Any) -> None:
        """Lets those look again that want to see what was written."""
        for check in self.checks:
            if hasattr(check, "look_back"):
                check.look_back(step)


TRAINING = StepMode("training", training=True, differentiates=True)
EVALUATION = StepMode("evaluation", training=False, differentiates=False)


@dataclasses.dataclass(frozen=True)
class Microstep:
    """The pure function of one micro-batch.

    All variables that are read or written come in as tensors and go out as
    tensors, so that it can stand in a loop, under XLA, or be thrown away.

    Args:
        model: A compiled and built Keras model.
        trainable: List of the variables to differentiate.
        updated: List of the variables whose new values are returned.
        normalizers: List of the BatchNormalization layers whose moments are
            returned in place of new statistics.
        tracker_weight: Float. Weight of a batch in the per-output trackers.
        mode: `StepMode`.
        plan: `ExecutionPlan`. Says what is recomputed, and whether XLA will
            compile it.
    """

    model: keras.Model
    trainable: list[keras.Variable]
    updated: list[keras.Variable]
    normalizers: list[keras.layers.BatchNormalization]
    tracker_weight: float = 1.0
    mode: StepMode = TRAINING
    plan: ExecutionPlan = ExecutionPlan()

    def __call__(
        self,
        data: Any,
        weights: list[tf.Tensor],
        state: list[tf.Tensor],
        share: Share | None,
    ) -> MicrostepResult:
        """Runs a micro-batch, or a whole batch.

        Args:
            data: Nest `x`, `(x, y)` or `(x, y, sample_weight)`.
            weights: Values of the trainable variables.
            state: Values of the updated variables, or an empty list to read
                the variables themselves.
            share: `Share` of a micro-batch, or `None` for a whole batch, whose
                loss is then computed by Keras alone.

        Returns:
            `MicrostepResult`.
        """
        scope, passed = self.run(data, weights, state, share)
        with scope:
            logs = self.track(data, passed.loss, passed.y_pred)
        return MicrostepResult(
            passed.gradients,
            [scope.get_current_value(variable) for variable in self.updated],
            passed.moments,
            passed.denominators,
            logs,
        )

    def run(
        self,
        data: Any,
        weights: list[tf.Tensor],
        state: list[tf.Tensor],
        share: Share | None,
        real: RealRows | None = None,
    ) -> tuple[RecordingScope, Pass]:
        """Runs forward and backward pass.

        Args:
            data: As for a call.
            weights: As for a call.
            state: As for a call.
            share: As for a call.
            real: `RealRows` of a padded micro-batch. Defaults to `None`, for
                one without padding.

        Returns:
            Tuple of the scope that keeps what was written, and the `Pass`.
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        tape = tf.GradientTape(watch_accessed_variables=False)
        scope = self.scope(weights, state, tape)
        rows = _rows(data, share, real)
        row_weight = None if share is None else _ratio(rows, share.rows)
        with (
            rows_at(self._position(share)),
            summed_activity_losses(self.model, row_weight, real),
        ):
            with (
                captured_moments(self.normalizers) as moments,
                self._rematerialized(),
                tape,
                scope,
            ):
                tape.watch(weights)
                y_pred = _compat.forward(self.model, x, self.mode.training)
                loss, denominators = self._loss(
                    (x, y, y_pred, sample_weight), rows, share, row_weight, real
                )
                target = self._target(loss, row_weight)
            # What is recomputed here must find the same regularizers.
            gradients = self._gradients(tape, target, weights, scope)
        return scope, Pass(gradients, moments, denominators, loss, y_pred)

    def scope(
        self,
        weights: list[tf.Tensor],
        state: list[tf.Tensor],
        tape: tf.GradientTape | None = None,
    ) -> RecordingScope:
        """Returns a scope in which the variables have the given values."""
        mapping = list(zip(self.trainable, weights, strict=True))
        if state:
            mapping += zip(self.updated, state, strict=True)
        return RecordingScope(mapping, tape)

    def track(self, data: Any, loss: tf.Tensor, y_pred: Any) -> Any:
        """Updates the metrics in the scope that is entered.

        Args:
            data: As for a call.
            loss: The loss, as of `Pass`.
            y_pred: Predictions.

        Returns:
            The logs, where the model makes its own, else an empty tuple.
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        _compat.update_loss_tracker(self.model, loss, x)
        logs = self.model.compute_metrics(x, y, y_pred, sample_weight)
        return logs if self._has_own_logs else ()

    def _position(self, share: Share | None) -> RowPosition | None:
        if self.model.optimizer is None:
            return None
        step = self.model.optimizer.iterations
        return RowPosition(step, 0 if share is None else share.first_row)

    def _rematerialized(self) -> contextlib.AbstractContextManager:
        # Without gradients, nothing is kept.
        if not self.mode.differentiates:
            return contextlib.nullcontext()
        return rematerialized(self.model, self.plan)

    @property
    def _has_own_logs(self) -> bool:
        stock = keras.Model.compute_metrics
        return type(self.model).compute_metrics is not stock

    def _loss(
        self,
        data: tuple,
        rows: tf.Tensor | None,
        share: Share | None,
        row_weight: tf.Tensor | None,
        real: RealRows | None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the loss of a micro-batch and its local denominators."""
        compiled = _compat.compile_loss(self.model)
        arguments = (self.model, *data, self.mode.training)
        # An overridden `compute_loss` may never build the compiled one.
        if share is None or compiled is None or not compiled.built:
            return _compat.compute_loss(*arguments), tf.zeros((0,))
        exact = MicrobatchLoss(
            compiled,
            share.denominators,
            rows,
            row_weight,
            self.tracker_weight,
            real,
        )
        with replaced_compile_loss(self.model, exact.loss):
            loss = _compat.compute_loss(*arguments)
        return loss, exact.local_denominators

    def _target(
        self, loss: tf.Tensor, row_weight: tf.Tensor | None
    ) -> tf.Tensor:
        """Returns what to differentiate."""
        if row_weight is not None:
            loss = loss * tf.cast(row_weight, loss.dtype)
        if self.model.optimizer is not None:
            loss = self.model.optimizer.scale_loss(loss)
        return loss

    def _gradients(
        self,
        tape: tf.GradientTape,
        loss: tf.Tensor,
        weights: list[tf.Tensor],
        scope: RecordingScope,
    ) -> list[Gradient]:
        """Differentiates with respect to the weights.

        A weight that the forward pass overwrote has two sources: the value
        before and the value after.
        """
        sources = list(weights)
        overwritten = {}
        for index, variable in enumerate(self.trainable):
            if any(variable is written for written in scope.written):
                overwritten[index] = len(sources)
                sources.append(scope.get_current_value(variable))
        gradients = tape.gradient(loss, sources)
        for index, source in overwritten.items():
            gradients[index] = _sum(gradients[index], gradients[source])
        return gradients[: len(weights)]


def _rows(data: Any, share: Share | None, real: RealRows | None) -> Any:
    """Returns the rows of a micro-batch; a whole batch may have none."""
    if share is None:
        return None
    return count_rows(data) if real is None else real.count


def _ratio(rows: tf.Tensor, of_rows: tf.Tensor) -> tf.Tensor:
    return tf.cast(rows / of_rows, tf.float32)


def _sum(first: Gradient, second: Gradient) -> Gradient:
    if first is None or second is None:
        return second if first is None else first
    return tf.convert_to_tensor(first) + tf.convert_to_tensor(second)


def read_values(variables: list[keras.Variable]) -> list[tf.Tensor]:
    """Returns the values of variables as tensors."""
    values = []
    for variable, device in zip(variables, placements(variables), strict=True):
        with at(device):
            values.append(tf.convert_to_tensor(variable.value))
    return values
