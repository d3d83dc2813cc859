"""Computing where variables live: forward, backward and update.

`tf.device` places what is called inside of it. The operations of a backward
pass and of an optimizer are made elsewhere, and TensorFlow puts them on the
default device, wherever weights and gradients are.
"""

from collections.abc import Callable
import contextlib
from typing import Any

import tensorflow as tf


def run_on(device: str, function: Callable, *arguments: Any) -> Any:
    """Calls a function on a device, and its backward pass as well.

    Args:
        device: String. Name of the device.
        function: Callable of nests of tensors that reads no variable.
            Gradients flow to its arguments only, not to what it closes over.
        *arguments: Nests of tensors.

    Returns:
        What the function returned.
    """

    @tf.custom_gradient
    def placed(*given: tf.Tensor) -> tuple[Any, Callable]:
        # A tensor that is given twice has a gradient for each.
        tensors = [tf.identity(tensor) for tensor in given]
        with tf.GradientTape() as tape:
            tape.watch([one for one in tensors if one.dtype.is_floating])
            outputs = function(*tf.nest.pack_sequence_as(arguments, tensors))

        def gradient(*upstream: tf.Tensor) -> list:
            with tf.device(device):
                return tape.gradient(
                    tf.nest.flatten(outputs), tensors, list(upstream)
                )

        return outputs, gradient

    with tf.device(device):
        return placed(*tf.nest.flatten(arguments))


def fan_out(device: str, tensor: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Returns a tensor several times; gradients are added up on a device.

    Args:
        device: String. Name of the device, best that of the tensor.
        tensor: Tensor that is used in several places.
        count: Integer. How many.
    """
    if count == 1:
        return [tensor]
    return list(
        run_on(device, lambda x: [tf.identity(x) for _ in range(count)], tensor)
    )


def placements(variables: list[Any]) -> list[str | None]:
    """Returns where variables live, if it is not all in one place.

    Args:
        variables: List of Keras variables.

    Returns:
        List with the device of each; of `None` where all are on one device, so
        that TensorFlow chooses.
    """
    devices = [_device_of(variable) for variable in variables]
    if len({*devices}) < 2:
        return [None] * len(devices)
    return devices


def at(device: str | None) -> contextlib.AbstractContextManager:
    """Returns the context of a device, or one that chooses none."""
    return contextlib.nullcontext() if device is None else tf.device(device)


def _device_of(variable: Any) -> str | None:
    return getattr(getattr(variable, "value", variable), "device", None)
