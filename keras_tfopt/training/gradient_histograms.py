"""The distributions of gradients, inside of the step's own graph."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_tfopt.accumulation import StepResult
from keras_tfopt.training.gradient_look import loss_scale
from keras_tfopt.training.gradient_look import rows_of

# As many as TensorBoard draws.
BINS = 30


class GradientHistograms:
    """Counts the gradients of every n-th update before they are clipped.

    It stands among the checks of a step, counts on the device, and leaves the
    counts in a variable, so that nobody waits for them. Updates that are not
    written are not counted.

    Args:
        model: The compiled model, built.
        every: Integer. Updates from one count to the next.

    Attributes:
        names: List of the paths of the trainable variables.
    """

    def __init__(self, model: keras.Model, every: int) -> None:
        self._model = model
        self._every = every
        self.names = [variable.path for variable in model.trainable_variables]
        shape = (len(self.names), BINS + 2)
        with tf.device("CPU:0"):
            self._steps = tf.Variable(tf.zeros((), tf.int64), trainable=False)
            self._update = tf.Variable(tf.zeros((), tf.int64), trainable=False)
            # Counts beyond what float32 can tell apart are exact.
            self._rows = tf.Variable(
                tf.zeros(shape, tf.float64), trainable=False
            )
        self._seen: Any = None

    def __call__(self, step: Any, result: StepResult) -> list[Any]:
        """Counts what is going to be written."""
        is_due = tf.equal(self._steps % self._every, 0)
        rows = tf.cond(
            is_due,
            lambda: self._counted(result),
            lambda: tf.zeros(self._rows.shape, tf.float64),
        )
        self._seen = is_due, rows
        return [rows]

    def look_back(self, step: Any) -> None:
        """Keeps the counts of what was written."""
        is_due, rows = self._seen
        self._seen = None

        def note() -> tf.Tensor:
            self._rows.assign(rows)
            updates = tf.convert_to_tensor(
                self._model.optimizer.iterations.value
            )
            self._update.assign(tf.cast(updates, tf.int64))
            return tf.constant(True)

        tf.cond(is_due, note, lambda: tf.constant(False))
        self._steps.assign_add(1)

    def is_of(self, model: keras.Model) -> bool:
        """Whether it counts the gradients of this model, as it is now."""
        paths = [variable.path for variable in model.trainable_variables]
        return model is self._model and paths == self.names

    def read(self) -> tuple[int, np.ndarray]:
        """Returns the last update that was counted, and its counts.

        Returns:
            Integer, 0 before the first; and an array with a row for each
            variable: the least and the largest value, and how many values lie
            in each of `BINS` equal bins between them.
        """
        return int(self._update), self._rows.numpy()

    def _counted(self, result: StepResult) -> tf.Tensor:
        scale = tf.cast(loss_scale(self._model.optimizer), tf.float64)
        rows: list[tf.Tensor] = []
        for gradient in result.gradients:
            # One after the other, for their memory.
            with tf.control_dependencies(rows[-1:]):
                if gradient is None:
                    row = tf.zeros(BINS + 2, tf.float64)
                else:
                    row = histogram(rows_of(gradient))
                rows.append(row)
        divisor = tf.concat([[scale, scale], tf.ones(BINS, tf.float64)], axis=0)
        return tf.stack(rows) / divisor


def histogram(values: tf.Tensor) -> tf.Tensor:
    """Returns the range of values, and how many lie in each part of it.

    Args:
        values: Tensor of any shape. Those that are not finite are left out.

    Returns:
        Tensor of float64: least and largest value, and `BINS` counts.
    """
    values = tf.reshape(tf.cast(values, tf.float32), [-1])
    is_finite = tf.math.is_finite(values)
    low = tf.reduce_min(tf.where(is_finite, values, float("inf")))
    high = tf.reduce_max(tf.where(is_finite, values, float("-inf")))
    # Halves: the whole range may be beyond float32.
    share = tf.math.divide_no_nan(values / 2 - low / 2, high / 2 - low / 2)
    # An empty range, or a value that is not finite, would end the step here.
    share = tf.where(is_finite, share, 0.0)
    counts = tf.histogram_fixed_width(share, [0.0, 1.0], BINS)
    broken = tf.math.count_nonzero(~is_finite, dtype=counts.dtype)
    counts -= broken * tf.one_hot(0, BINS, dtype=counts.dtype)
    ends = tf.cast(tf.stack([low, high]), tf.float64)
    return tf.concat([ends, tf.cast(counts, tf.float64)], axis=0)
