"""The arguments that stock layers and their parallel forms share."""

from typing import Any

import keras

from keras_tfopt.distribution.sharded_attention import (
    ParallelMultiHeadAttention,
)
from keras_tfopt.distribution.sharded_dense import ColumnParallelDense
from keras_tfopt.distribution.sharded_dense import RowParallelDense

# What no parallel layer has, and the value that means it is not used.
_ABSENT: dict[str, tuple[Any, ...]] = {
    "activity_regularizer": (None,),
    # The second once the layer is built.
    "attention_axes": (None, (1,), [1]),
    "bias_constraint": (None,),
    "dropout": (0, 0.0),
    "kernel_constraint": (None,),
    "lora_alpha": (None,),
    "lora_rank": (None,),
    "quantization_config": (None,),
    "sliding_window": (None,),
    "use_gate": (False,),
}


def parallel_config(layer: keras.layers.Layer) -> dict[str, Any]:
    """Returns the arguments of the parallel form of a stock layer.

    Args:
        layer: `keras.layers.Dense` or `keras.layers.MultiHeadAttention`.

    Raises:
        ValueError: If the layer uses an argument that the parallel form does
            not have.
    """
    config = layer.get_config()
    # It is for dropout, which the parallel form does not have.
    config.pop("seed", None)
    for name, unused in _ABSENT.items():
        value = config.pop(name, unused[0])
        if value not in unused:
            raise ValueError(
                f"Layer '{layer.name}' cannot be divided among devices. "
                f"Received: {name}={value!r}. Expected: {unused[0]!r}."
            )
    if isinstance(layer, keras.layers.MultiHeadAttention):
        size = config.pop("output_shape", None)
        if size is not None and len(size) != 1:
            raise ValueError(
                f"Layer '{layer.name}' cannot be divided among devices. "
                f"Received: output_shape={size!r}. Expected: one dimension."
            )
        config["output_dim"] = None if size is None else size[0]
    return config


def stock_layer(layer: keras.layers.Layer) -> keras.layers.Layer | None:
    """Returns the stock form of a parallel layer, or `None` for others."""
    if isinstance(layer, (ColumnParallelDense, RowParallelDense)):
        config = layer.get_config()
        config.pop("gather_output", None)
        config.pop("devices")
        return keras.layers.Dense.from_config(config)
    if isinstance(layer, ParallelMultiHeadAttention):
        config = layer.get_config()
        config.pop("devices")
        config["output_shape"] = config.pop("output_dim")
        return keras.layers.MultiHeadAttention.from_config(config)
    return None
