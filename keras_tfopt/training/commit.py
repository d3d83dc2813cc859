"""The commit: all writes of a step, behind everything that can fail."""

import warnings

import keras
import tensorflow as tf

from keras_tfopt.accumulation import StepResult
from keras_tfopt.training.chained_updates import chained_updates


def commit(
    model: keras.Model,
    trainable: list[keras.Variable],
    updated: list[keras.Variable],
    result: StepResult,
) -> None:
    """Writes a step's result: state, weights, slots and metrics, once each.

    Args:
        model: The compiled Keras model.
        trainable: Variables of `result.gradients`.
        updated: Variables of `result.updates`.
        result: `StepResult` of the pure step.
    """
    # Without the barrier a write may run ahead of a gradient that fails.
    with tf.control_dependencies(_tensors(result)):
        for variable, value in zip(updated, result.updates, strict=True):
            variable.assign(value)
        if trainable:
            with chained_updates(model.optimizer):
                model.optimizer.apply_gradients(
                    zip(result.gradients, trainable, strict=True)
                )
        else:
            warnings.warn(
                "The model does not have any trainable weights.", stacklevel=2
            )


def _tensors(result: StepResult) -> list[tf.Tensor]:
    if tf.executing_eagerly():
        return []
    flat = tf.nest.flatten(result, expand_composites=True)
    return [leaf for leaf in flat if isinstance(leaf, tf.Tensor)]
