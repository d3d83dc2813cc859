"""A look at gradients and updates, inside of the step's own graph."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_tfopt.accumulation import StepResult

# A unit without a gradient in so many looks is dead.
_DEAD_LOOKS = 3


class GradientLook:
    """Measures the gradients of every n-th update before they are clipped.

    It stands among the checks of a step, computes on the device, and leaves its
    figures in a variable, so that nobody waits for them. An update that is
    looked at holds the weights twice, to compare them.

    Args:
        model: The compiled model, built.
        every: Integer. Updates from one look to the next.

    Attributes:
        names: List of the paths of the trainable variables.
    """

    def __init__(self, model: keras.Model, every: int) -> None:
        self._model = model
        self._every = every
        variables = model.trainable_variables
        self.names = [variable.path for variable in variables]
        with tf.device("CPU:0"):
            self._steps = _variable(tf.zeros((), tf.int64))
            self._looks = _variable(tf.zeros((), tf.int64))
            self._figures = _variable(
                tf.fill((len(variables), 4), float("nan"))
            )
        # Looks in a row in which a unit got no gradient.
        self._quiet = {
            index: _variable(tf.zeros(variable.shape[-1:], tf.int32))
            for index, variable in enumerate(variables)
            if len(variable.shape) > 1
        }
        self._seen: Any = None

    def __call__(self, step: Any, result: StepResult) -> list[Any]:
        """Measures what is going to be written."""
        is_due = tf.equal(self._steps % self._every, 0)

        def measure() -> tuple[tf.Tensor, list[tf.Tensor]]:
            # Read here: whoever holds a weight makes its update copy it.
            weights = [tf.convert_to_tensor(v.value) for v in step.trainable]
            return self._gradient_figures(result, weights), weights

        def skip() -> tuple[tf.Tensor, list[tf.Tensor]]:
            empty = [
                tf.zeros([0] * len(v.shape), v.dtype) for v in step.trainable
            ]
            return tf.zeros((len(empty), 3)), empty

        norms, kept = tf.cond(is_due, measure, skip)
        self._seen = is_due, norms, kept
        return [norms, *kept]

    def look_back(self, step: Any) -> None:
        """Measures what was written, and notes it with the rest."""
        is_due, norms, kept = self._seen
        self._seen = None

        def note() -> tf.Tensor:
            changes: list[tf.Tensor] = []
            for variable, before in zip(step.trainable, kept, strict=True):
                # One after the other, for their memory.
                with tf.control_dependencies(changes[-1:]):
                    after = tf.convert_to_tensor(variable.value)
                    before = tf.ensure_shape(before, after.shape)
                    changes.append(_norm(after - before))
            figures = tf.concat([norms, tf.stack(changes)[:, None]], axis=1)
            self._figures.assign(figures)
            self._looks.assign_add(1)
            return tf.constant(True)

        tf.cond(is_due, note, lambda: tf.constant(False))
        self._steps.assign_add(1)

    def read(self) -> tuple[int, np.ndarray]:
        """Returns the number of looks, and the figures of the last one.

        Returns:
            Integer, and an array with a row for each variable: the norms of
            gradient and weights, the share of dead units, and the norm of the
            update; NaN where there is none.
        """
        return int(self._looks), self._figures.numpy()

    def _gradient_figures(
        self, result: StepResult, weights: list[tf.Tensor]
    ) -> tf.Tensor:
        scale = loss_scale(self._model.optimizer)
        rows = []
        for index, gradient in enumerate(result.gradients):
            missing = tf.constant(float("nan"))
            norm, dead = missing, missing
            if gradient is not None:
                norm = _norm(rows_of(gradient)) / scale
                if index in self._quiet and isinstance(gradient, tf.Tensor):
                    dead = self._dead_share(index, gradient)
            rows.append(tf.stack([norm, _norm(weights[index]), dead]))
        return tf.stack(rows)

    def _dead_share(self, index: int, gradient: tf.Tensor) -> tf.Tensor:
        axes = list(range(len(gradient.shape) - 1))
        is_quiet = tf.reduce_all(tf.equal(gradient, 0), axis=axes)
        before = self._quiet[index]
        looks = tf.where(is_quiet, before + 1, tf.zeros_like(before))
        with tf.control_dependencies([before.assign(looks)]):
            is_dead = looks >= _DEAD_LOOKS
        return tf.reduce_mean(tf.cast(is_dead, tf.float32))


def loss_scale(optimizer: Any) -> tf.Tensor:
    """Returns what a `LossScaleOptimizer` multiplied gradients by."""
    scale = tf.constant(1.0)
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        dynamic = tf.convert_to_tensor(optimizer.dynamic_scale.value)
        scale *= tf.cast(dynamic, tf.float32)
        optimizer = optimizer.inner_optimizer
    return scale


def rows_of(gradient: Any) -> tf.Tensor:
    """Returns a gradient, of a sparse one the rows, each once."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, positions = tf.unique(gradient.indices)
    return tf.math.unsorted_segment_sum(
        gradient.values, positions, tf.size(rows)
    )


def _variable(value: tf.Tensor) -> tf.Variable:
    return tf.Variable(value, trainable=False)


def _norm(tensor: tf.Tensor) -> tf.Tensor:
    # Squares of half precision overflow soon.
    return tf.norm(tf.cast(tensor, tf.float32))
