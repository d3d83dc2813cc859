"""Environment variables that TensorFlow and Keras read."""

from collections.abc import Iterator
from collections.abc import Mapping
import os

import keras

from keras_tfopt.doctor.finding import ERROR
from keras_tfopt.doctor.finding import INFO
from keras_tfopt.doctor.finding import OK
from keras_tfopt.doctor.finding import WARNING
from keras_tfopt.doctor.finding import Finding

TOPIC = "environment"

_SHOWN = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "TF_GPU_ALLOCATOR",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_CPU_ALLOCATOR_USE_BFC",
    "TF_CPU_BFC_MEM_LIMIT_IN_MB",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_DETERMINISTIC_OPS",
    "NVIDIA_TF32_OVERRIDE",
)


def examine_environment() -> Iterator[Finding]:
    """Yields what the environment tells TensorFlow and Keras."""
    yield from examine_backend(keras.backend.backend())
    yield from examine_variables(os.environ)


def examine_backend(backend: str) -> Iterator[Finding]:
    """Yields whether Keras runs on TensorFlow."""
    if backend == "tensorflow":
        yield Finding(TOPIC, OK, "Keras runs on TensorFlow")
    else:
        yield Finding(
            TOPIC,
            ERROR,
            f"Keras runs on {backend}",
            "Set KERAS_BACKEND=tensorflow, or the backend in keras.json.",
        )


def examine_variables(variables: Mapping[str, str]) -> Iterator[Finding]:
    """Yields what variables are set, and those that stand in the way.

    Args:
        variables: Mapping such as `os.environ`.
    """
    for name in _SHOWN:
        if name in variables:
            yield Finding(TOPIC, INFO, f"{name}={variables[name]}")
    if variables.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True"):
        yield Finding(
            TOPIC,
            WARNING,
            "TF_USE_LEGACY_KERAS makes `tf.keras` another library than `keras`",
            "Unset it, and build models with `import keras`.",
        )
    if variables.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        yield Finding(
            TOPIC,
            WARNING,
            "CUDA_VISIBLE_DEVICES hides all GPUs",
            "Unset it, or name the GPUs to train on.",
        )
    if variables.get("CUDA_LAUNCH_BLOCKING") == "1":
        yield Finding(
            TOPIC,
            WARNING,
            "CUDA_LAUNCH_BLOCKING makes the host wait for each kernel",
            "Unset it when you are done with debugging.",
        )
    uses_bfc = variables.get("TF_CPU_ALLOCATOR_USE_BFC") == "true"
    if uses_bfc and variables.get("TF_ENABLE_ONEDNN_OPTS") != "0":
        yield Finding(
            TOPIC,
            WARNING,
            "oneDNN kernels end the process when a CPU allocation fails",
            "Set TF_ENABLE_ONEDNN_OPTS=0 to recover from them on a CPU.",
        )
    if "TF_CPU_BFC_MEM_LIMIT_IN_MB" in variables and not uses_bfc:
        yield Finding(
            TOPIC,
            WARNING,
            "TF_CPU_BFC_MEM_LIMIT_IN_MB limits nothing",
            "Set TF_CPU_ALLOCATOR_USE_BFC=true beside it.",
        )
