"""Devices that TensorFlow sees, and what they compute fastest."""

from collections.abc import Iterator

import tensorflow as tf

from keras_tfopt.doctor.finding import INFO
from keras_tfopt.doctor.finding import OK
from keras_tfopt.doctor.finding import WARNING
from keras_tfopt.doctor.finding import Finding
from keras_tfopt.memory.mixed_precision import advise_compute_dtype

TOPIC = "devices"


def examine_devices() -> Iterator[Finding]:
    """Yields the devices, without starting them."""
    for kind in ("GPU", "TPU"):
        for device in tf.config.list_physical_devices(kind):
            details = tf.config.experimental.get_device_details(device)
            name = details.get("device_name", "unknown model")
            yield Finding(TOPIC, OK, f"{device.name}: {name}")
    if not tf.config.list_physical_devices("GPU"):
        yield _no_gpu(tf.test.is_built_with_cuda())
    advice = advise_compute_dtype()
    yield Finding(
        TOPIC,
        INFO,
        f"half precision: {advice.compute_dtype or 'none'}, {advice.reason}",
        "mixed_precision: true uses it." if advice.compute_dtype else "",
    )


def _no_gpu(is_built_with_cuda: bool) -> Finding:
    if is_built_with_cuda:
        return Finding(
            TOPIC,
            WARNING,
            "TensorFlow can use GPUs and sees none",
            "With a GPU: pip install 'keras-tfopt[gpu]', and see whether the "
            "driver is loaded (nvidia-smi).",
        )
    return Finding(
        TOPIC,
        INFO,
        "this TensorFlow is built without GPU support",
        "With a GPU: pip install 'keras-tfopt[gpu]'.",
    )
