"""Sums of gradients: dense, sparse, or none at all.

A list of gradients has one entry per trainable variable. `None` stays `None`: a
variable that the loss does not reach gets no update, not an update by zero.
Sparse gradients are concatenated, never densified: a dense sum for an embedding
would be as large as its table, and Keras' optimizers treat the two differently.
"""

from typing import Any
from typing import TypeAlias

import keras
import tensorflow as tf

from keras_tfopt.devices import at
from keras_tfopt.devices import placements

Gradient: TypeAlias = "tf.Tensor | tf.IndexedSlices | None"


def zero_gradients(
    variables: list[keras.Variable], like: list[Gradient]
) -> list[Gradient]:
    """Returns gradients that add nothing.

    Args:
        variables: Trainable variables.
        like: Gradients, or their specs, that tell which are dense, sparse or
            `None`.

    Returns:
        List of float32 zeros (float64 for such variables), empty
        `tf.IndexedSlices`, and `None`.
    """
    zeros = []
    for variable, gradient, device in zip(
        variables, like, placements(variables), strict=True
    ):
        with at(device):
            zeros.append(_zero(variable, gradient))
    return zeros


def loop_gradients(total: list[Gradient], count: Any) -> list:
    """Returns loop variables that collect gradients on top of `total`.

    Args:
        total: Gradients so far.
        count: Number of iterations; an integer under XLA.

    Returns:
        List of dense sums, pairs of `tf.TensorArray`, and empty tuples.
    """
    return [_loop_variable(gradient, count) for gradient in total]


def add_to_loop(
    carry: list,
    index: tf.Tensor,
    gradients: list,
    devices: list[str | None] | None = None,
) -> list:
    """Returns the loop variables with the gradients of one micro-batch.

    Args:
        carry: List of the loop variables.
        index: Int32 scalar. Index of the micro-batch.
        gradients: List of its gradients.
        devices: What `placements` tells of the variables. Defaults to `None`,
            which leaves the choice to TensorFlow.
    """
    result: list = []
    for variable, gradient, device in zip(
        carry, gradients, devices or [None] * len(carry), strict=True
    ):
        if isinstance(variable, tf.Tensor):
            with at(device):
                result.append(variable + tf.cast(gradient, variable.dtype))
        elif variable:
            values, indices = variable
            result.append(
                (
                    values.write(index, gradient.values),
                    indices.write(index, gradient.indices),
                )
            )
        else:
            result.append(())
    return result


def finish_loop(total: list[Gradient], carry: list) -> list[Gradient]:
    """Returns `total` and what the loop collected on top of it."""
    result: list[Gradient] = []
    for gradient, variable in zip(total, carry, strict=True):
        if isinstance(gradient, tf.IndexedSlices):
            values, indices = variable
            result.append(
                tf.IndexedSlices(
                    tf.concat([gradient.values, values.concat()], 0),
                    tf.concat([gradient.indices, indices.concat()], 0),
                    gradient.dense_shape,
                )
            )
        else:
            result.append(None if gradient is None else variable)
    return result


def cast_gradients(
    gradients: list[Gradient], variables: list[keras.Variable]
) -> list[Gradient]:
    """Returns gradients in the dtypes of their variables."""
    result: list[Gradient] = []
    for gradient, variable, device in zip(
        gradients, variables, placements(variables), strict=True
    ):
        with at(device):
            result.append(
                None if gradient is None else tf.cast(gradient, variable.dtype)
            )
    return result


def _zero(variable: keras.Variable, like: Any) -> Gradient:
    if like is None:
        return None
    if isinstance(like, (tf.IndexedSlices, tf.IndexedSlicesSpec)):
        values, indices = _slices_dtypes(like)
        return tf.IndexedSlices(
            tf.zeros((0, *variable.shape[1:]), values),
            tf.zeros((0,), indices),
            tf.constant(variable.shape.as_list(), indices),
        )
    # Half precision loses small terms of a long sum.
    is_half = variable.dtype in ("float16", "bfloat16")
    return tf.zeros(variable.shape, "float32" if is_half else variable.dtype)


def _slices_dtypes(like: Any) -> tuple[tf.DType, tf.DType]:
    if isinstance(like, tf.IndexedSlicesSpec):
        values, indices = tf.nest.flatten(like, expand_composites=True)[:2]
        return values.dtype, indices.dtype
    return like.values.dtype, like.indices.dtype


def _loop_variable(gradient: Gradient, count: Any) -> Any:
    if gradient is None:
        return ()
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tuple(
        tf.TensorArray(
            part.dtype,
            size=count,
            element_shape=[None, *part.shape[1:]],
            infer_shape=False,
        )
        for part in (gradient.values, gradient.indices)
    )
