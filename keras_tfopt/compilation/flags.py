"""What TensorFlow must be told about XLA before it starts."""

import os

from keras_tfopt import _compat

_VARIABLE = "TF_XLA_FLAGS"


def add_flag(flag: str) -> None:
    """Adds a flag to those that TensorFlow reads when it starts its devices.

    Args:
        flag: String, such as `"--tf_xla_cpu_global_jit"`.

    Raises:
        RuntimeError: If TensorFlow has started, and did so without the flag.
    """
    flags = os.environ.get(_VARIABLE, "").split()
    if flag in flags:
        return
    if _compat.is_started():
        raise RuntimeError(
            "TensorFlow has read its flags already, with the first operation "
            f"or query of devices. Received: {flag} after that. Expected: this "
            f"call before that, or {_VARIABLE}={flag} in the environment of "
            "the process."
        )
    os.environ[_VARIABLE] = " ".join([*flags, flag])
