"""Tensors that wait in the memory of the host for the backward pass.

TensorFlow sends a tensor to the device that needs it as soon as there is one,
so what shall come late must be made late, on the host. And it removes copies
that look like nothing, such as `tf.identity`, with what they were to move.
"""

from typing import Any

import tensorflow as tf

# Of the process: strategies add the job and the task.
HOST = "CPU:0"

# What is smaller stays: it would free next to nothing.
_MIN_BYTES = 4096
_UNMOVABLE = (tf.string, tf.resource, tf.variant)


def is_on_host(device: str) -> bool:
    """Whether a device is the host.

    Args:
        device: String. Its name, such as
            `"/job:localhost/replica:0/task:0/device:CPU:0"`.
    """
    return device.rpartition("device:")[-1].upper() == HOST


def is_frozen_on_host(value: Any) -> bool:
    """Whether a value is a large variable on the host, and not a tensor."""
    return (
        isinstance(value, tf.Variable)
        and is_on_host(value.device)
        and is_worth_moving(value)
    )


def is_worth_moving(tensor: tf.Tensor | tf.Variable) -> bool:
    """Whether a tensor can be moved and may be large."""
    if tensor.dtype in _UNMOVABLE:
        return False
    # A size that is not known yet is that of a batch.
    count = tensor.shape.num_elements()
    return count is None or count * tensor.dtype.size >= _MIN_BYTES


def to_host(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a copy on the host, made as soon as the tensor is there."""
    with tf.device(HOST):
        return tf.raw_ops.DeepCopy(x=tensor, name="to_host")


def from_host(kept: tf.Tensor, gradients: list[tf.Tensor]) -> tf.Tensor:
    """Returns a tensor that leaves the host behind gradients.

    Args:
        kept: What `to_host` returned.
        gradients: Tensors to wait for.
    """
    with _behind(gradients), tf.device(HOST):
        return tf.raw_ops.DeepCopy(x=kept, name="from_host")


def read_on_host(variable: Any, after: list[tf.Tensor]) -> tf.Tensor:
    """Returns the value of a variable on the host, read behind tensors.

    Args:
        variable: `tf.Variable`.
        after: Tensors to wait for.
    """
    with _behind(after), tf.device(HOST), tf.name_scope("frozen"):
        return variable.read_value()


def _behind(tensors: list[tf.Tensor]) -> Any:
    return tf.control_dependencies(
        [] if tf.executing_eagerly() else list(tensors)
    )
