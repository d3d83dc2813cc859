"""How much memory TensorFlow may take of a device."""

import os

import tensorflow as tf

from keras_tfopt import _compat

_MIB = 2**20


def device_limit_bytes(device: str) -> int | None:
    """Returns what the allocator of a device may hand out.

    Args:
        device: String. Name of a logical device, such as `"GPU:0"`.

    Returns:
        Integer, or `None` where nothing limits the allocator: a CPU without
        `TF_CPU_BFC_MEM_LIMIT_IN_MB`.
    """
    if device.rpartition(":")[0].endswith("CPU"):
        is_counted = os.environ.get("TF_CPU_ALLOCATOR_USE_BFC") == "true"
        limit = os.environ.get("TF_CPU_BFC_MEM_LIMIT_IN_MB")
        return int(limit) * _MIB if is_counted and limit else None
    return _compat.device_memory_limit(device)


def limit_gpus(limit_bytes: int) -> None:
    """Lets TensorFlow take no more than a limit of each GPU, if there are any.

    Must come before the first use of a device. A CPU is limited by
    `TF_CPU_ALLOCATOR_USE_BFC=true` and `TF_CPU_BFC_MEM_LIMIT_IN_MB` in the
    environment instead.

    Args:
        limit_bytes: Integer.
    """
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.set_logical_device_configuration(
            gpu,
            [tf.config.LogicalDeviceConfiguration(limit_bytes // _MIB)],
        )


def default_device() -> str:
    """Returns the device that TensorFlow places models on by default."""
    return "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"


def compute_devices() -> list[str]:
    """Returns the logical GPUs, or the CPU where TensorFlow sees none."""
    gpus = tf.config.list_logical_devices("GPU")
    return [gpu.name.rpartition("device:")[-1] for gpu in gpus] or ["CPU:0"]
