"""The order in which a backward pass computes again, for its memory."""

from typing import Any

import tensorflow as tf

from keras_tfopt.accumulation.host_memory import from_host
from keras_tfopt.accumulation.host_memory import read_on_host


class After:
    """Makes tensors that are not there before gradients are.

    TensorFlow honors control dependencies. XLA drops them and only follows
    data; seeds must follow as well, or it keeps the masks of the first call.

    Args:
        upstream: Gradients to wait for.
        is_compiled: Boolean. Whether XLA will compile the graph.
    """

    def __init__(self, upstream: tuple, is_compiled: bool) -> None:
        self._gradients = [
            dy.values if isinstance(dy, tf.IndexedSlices) else dy
            for dy in upstream
        ]
        self._is_true: tf.Tensor | None = None
        if is_compiled and self._gradients:
            first = [tf.reshape(dy, [-1])[:1] for dy in self._gradients]
            flags = [tf.cast(one, tf.bool) for one in first]
            flag = tf.reduce_any(tf.concat(flags, 0))
            # True, but XLA does not know that.
            self._is_true = tf.equal(flag, flag)

    def __call__(self, tensor: tf.Tensor, is_weight: bool = False) -> tf.Tensor:
        """Returns a tensor of the same value.

        Args:
            tensor: The tensor.
            is_weight: Boolean. Whether there are inputs beside it that wait,
                so that under XLA it need not be copied. Defaults to `False`.
        """
        if tf.executing_eagerly():
            return tf.identity(tensor)
        if self._is_true is None:
            with tf.control_dependencies(self._gradients):
                return tf.identity(tensor)
        if is_weight or tensor.dtype in (tf.string, tf.resource, tf.variant):
            return tf.identity(tensor)
        if tensor.dtype == tf.bool:
            return tf.logical_and(tensor, self._is_true)
        zero = tf.where(self._is_true, 0.0, float("nan"))
        return tensor + tf.cast(zero, tensor.dtype)

    def fetch(self, kept: tf.Tensor) -> tf.Tensor:
        """Returns a tensor that waits on the host until then."""
        return from_host(kept, self._gradients)

    def read(self, variable: Any) -> tf.Tensor:
        """Returns the value of a variable that is on the host, read then."""
        return read_on_host(variable, self._gradients)


def together(gradients: list[Any]) -> list[Any]:
    """Returns gradients none of which is there before the others.

    Otherwise those of inputs may run ahead, down to the first layer, and those
    of weights follow with all that was computed again for them still alive.
    """
    if tf.executing_eagerly():
        return gradients
    found = [gradient for gradient in gradients if gradient is not None]
    with tf.control_dependencies(
        tf.nest.flatten(found, expand_composites=True)
    ):
        return [
            None
            if gradient is None
            else tf.nest.map_structure(
                tf.identity, gradient, expand_composites=True
            )
            for gradient in gradients
        ]
