"""Refuses what a bad step is going to write, before it is written."""

from typing import Any

import keras
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.accumulation import StepResult

# Marks the errors of a gate among those of a step.
REFUSAL = "keras_tfopt: the step is refused"

_SPREAD_OF_NORMAL = 1.4826


class StepGate:
    """Lets a step pass if its loss and gradients are finite and no spike.

    A spike is a value above the median of the last good steps by more than
    `factor` times their spread: the median deviation, scaled to the standard
    deviation of a normal distribution, but at least a tenth of the median.
    Everything is computed on the device, before the writes of the step, and
    costs one pass over the gradients.

    Args:
        model: The compiled model.
        factor: Float or `None`. `None` lets spikes pass.
        window: Integer. Good steps to remember.
        warmup: Integer. Good steps before spikes are looked for.

    Attributes:
        history: Variable of shape `(2, window)`. Losses and gradient norms of
            the last good steps; NaN where there was none yet.
        last: Variable of shape `(2, 2)`. Loss and gradient norm of the last
            step, good or bad, and what they were allowed to be.
    """

    def __init__(
        self, model: keras.Model, factor: float | None, window: int, warmup: int
    ) -> None:
        self._model = model
        self._factor = factor
        self._warmup = warmup
        empty = tf.fill((2, window), float("nan"))
        with tf.device("CPU:0"):
            self.history = tf.Variable(empty, trainable=False)
            self.last = tf.Variable(tf.zeros((2, 2)), trainable=False)

    def __call__(self, step: Any, result: StepResult) -> list[tf.Operation]:
        """Returns operations that fail if a result must not be written."""
        values = tf.stack(
            [self._loss(step, result), self._gradient_norm(result)]
        )
        limits = self._limits()
        noted = self.last.assign(tf.stack([values, limits]), read_value=False)
        is_good = tf.reduce_all(tf.math.is_finite(values) & (values <= limits))
        dependencies = [noted] if noted is not None else []
        with tf.control_dependencies(dependencies):
            passed = tf.debugging.Assert(is_good, [REFUSAL, values, limits])
        if passed is not None:
            dependencies.append(passed)
        with tf.control_dependencies(dependencies):
            shifted = tf.concat([self.history[:, 1:], values[:, None]], axis=1)
            remembered = self.history.assign(shifted, read_value=False)
        return [*dependencies, *([] if remembered is None else [remembered])]

    def _loss(self, step: Any, result: StepResult) -> tf.Tensor:
        """Returns the step's own loss, which the tracker's mean hides."""
        tracker = _compat.loss_trackers(self._model)[0]
        changes = []
        for variable in (tracker.total, tracker.count):
            new = next(
                value
                for updated, value in zip(
                    step.updated, result.updates, strict=True
                )
                if updated is variable
            )
            changes.append(tf.cast(new - variable.value, tf.float32))
        return tf.math.divide_no_nan(*changes)

    def _gradient_norm(self, result: StepResult) -> tf.Tensor:
        if isinstance(
            self._model.optimizer, keras.optimizers.LossScaleOptimizer
        ):
            # It meets infinity as a matter of course, and lowers its scale.
            return tf.zeros(())
        halves = [
            tf.cast(tf.nn.l2_loss(_values(gradient)), tf.float32)
            for gradient in result.gradients
            if gradient is not None
        ]
        return tf.sqrt(2.0 * tf.add_n(halves)) if halves else tf.zeros(())

    def _limits(self) -> tf.Tensor:
        """Returns the largest loss and gradient norm that pass."""
        infinity = tf.fill((2,), tf.float32.max)
        if self._factor is None:
            return infinity
        known = tf.math.count_nonzero(
            tf.math.is_finite(self.history[0]), dtype=tf.int32
        )
        # New values come in from the right.
        recent = self.history[:, tf.shape(self.history)[1] - known :]

        def robust() -> tf.Tensor:
            median = _median(recent)
            deviation = _median(tf.abs(recent - median[:, None]))
            spread = tf.maximum(
                _SPREAD_OF_NORMAL * deviation, 0.1 * tf.abs(median)
            )
            return median + self._factor * spread + 1e-12

        return tf.cond(known >= self._warmup, robust, lambda: infinity)


def _median(rows: tf.Tensor) -> tf.Tensor:
    ordered = tf.sort(rows, axis=1)
    return ordered[:, tf.shape(rows)[1] // 2]


def _values(gradient: Any) -> tf.Tensor:
    if isinstance(gradient, tf.IndexedSlices):
        gradient = gradient.values
    # Squares of half precision overflow soon.
    is_half = gradient.dtype in (tf.float16, tf.bfloat16)
    return tf.cast(gradient, tf.float32) if is_half else gradient
