"""The random generators of a process that belong to no model."""

import random
from typing import Any

import numpy as np

from keras_tfopt import _compat_fit


def capture_random_state() -> dict[str, Any]:
    """Returns the state of the global generators of Python, NumPy, TensorFlow.

    Of TensorFlow's there are three: the generator behind `keras.random`, the
    one of `tf.random.get_global_generator`, and the one that gives operations
    their seeds. Those that are not in use are absent.
    """
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "operations": _compat_fit.operation_seed_state(),
    }
    seeds = _compat_fit.global_seed_generator()
    if seeds is not None:
        state["keras"] = seeds.state.numpy()
    generator = _compat_fit.global_generator()
    if generator is not None:
        state["tensorflow"] = generator.state.numpy()
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    """Puts the global generators where they were.

    Args:
        state: What `capture_random_state` returned.
    """
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    if state["operations"] is not None:
        _compat_fit.set_operation_seed_state(state["operations"])
    if "keras" in state:
        _compat_fit.global_seed_generator(create=True).state.assign(
            state["keras"]
        )
    if "tensorflow" in state:
        _compat_fit.global_generator(create=True).reset(state["tensorflow"])
