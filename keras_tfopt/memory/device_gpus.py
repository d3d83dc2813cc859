"""Which GPUs of the machine this process computes on."""

import os

import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.memory.absence import report_absence
from keras_tfopt.memory.driver import Driver
from keras_tfopt.memory.visible_gpus import VisibleGpu
from keras_tfopt.memory.visible_gpus import logical_gpus
from keras_tfopt.memory.visible_gpus import match_gpus


def gpus_of_devices(driver: Driver) -> dict[str, VisibleGpu]:
    """Returns which GPU of the machine each of TensorFlow's GPUs is.

    Starts TensorFlow's devices. A GPU that cannot be told is left out, with
    one INFO line in the log.

    Args:
        driver: `Driver`.

    Returns:
        Dict from names of logical devices, such as `"GPU:0"`, to `VisibleGpu`.
    """
    if not tf.config.list_logical_devices("GPU"):
        return {}
    parts = {
        int(gpu.name.rpartition(":")[-1]): len(
            tf.config.get_logical_device_configuration(gpu) or [None]
        )
        for gpu in tf.config.get_visible_devices("GPU")
    }
    matches = match_gpus(
        logical_gpus(parts, _compat.device_descriptions()),
        driver.gpus(),
        os.environ.get("CUDA_VISIBLE_DEVICES"),
        os.environ.get("CUDA_DEVICE_ORDER"),
    )
    for name, match in matches.items():
        if match is None:
            report_absence(
                f"driver readings of {name}",
                "neither its PCI address nor CUDA_VISIBLE_DEVICES tells which "
                "GPU of the driver it is",
            )
    return {name: match for name, match in matches.items() if match is not None}
