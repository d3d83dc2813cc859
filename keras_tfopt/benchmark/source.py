"""The model and the batch that a command works on."""

import importlib
import sys
from typing import Any

import keras

from keras_tfopt import AccumModel
from keras_tfopt.benchmark.networks import NETWORKS


def load_source(source: str) -> tuple[keras.Model, Any]:
    """Returns the model and the batch that a source names.

    Args:
        source: String. A network of the benchmark, such as `"MLP"`, or
            `"module:function"`. The function takes nothing and returns a
            compiled Keras model and a batch `(x, y)` or
            `(x, y, sample_weight)`.

    Returns:
        Tuple of model and batch.

    Raises:
        ValueError: If there is no such network, module or function, or if it
            returns something else.
    """
    for network in NETWORKS:
        if network.name.lower() == source.lower():
            return network.build(AccumModel), network.data(1)
    module_name, _, name = source.partition(":")
    names = ", ".join(network.name for network in NETWORKS)
    expected = f"Expected: one of {names}, or module:function."
    if not name:
        raise ValueError(f"Unknown source. Received: {source!r}. {expected}")
    # As `python -m` does: people name modules of the folder they are in.
    sys.path.insert(0, "")
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (AttributeError, ImportError) as error:
        raise ValueError(
            f"Unknown source. Received: {source!r} ({error}). {expected}"
        ) from error
    finally:
        sys.path.remove("")
    made = function()
    is_pair = isinstance(made, tuple) and len(made) == 2
    if not is_pair or not isinstance(made[0], keras.Model):
        raise ValueError(
            f"{source} must make a model and a batch. Received: "
            f"{type(made).__name__}. Expected: a tuple of a compiled "
            "keras.Model and a batch (x, y) or (x, y, sample_weight)."
        )
    return made
