"""From a model for one device to one on several, and back."""

from collections.abc import Callable
from collections.abc import Mapping
import fnmatch
from typing import Any

import keras

from keras_tfopt.distribution.mesh import Devices
from keras_tfopt.distribution.mesh import parse_devices
from keras_tfopt.distribution.placed_layer import OnDevice
from keras_tfopt.distribution.shard_checks import check_optimizer
from keras_tfopt.distribution.sharded_attention import (
    ParallelMultiHeadAttention,
)
from keras_tfopt.distribution.sharded_dense import ColumnParallelDense
from keras_tfopt.distribution.sharded_dense import GatherShards
from keras_tfopt.distribution.sharded_dense import RowParallelDense
from keras_tfopt.distribution.sharded_layer import ShardedLayer
from keras_tfopt.distribution.stock_config import parallel_config
from keras_tfopt.distribution.stock_config import stock_layer

_KINDS: dict[str, tuple[type, type]] = {
    "column": (keras.layers.Dense, ColumnParallelDense),
    "row": (keras.layers.Dense, RowParallelDense),
    "heads": (keras.layers.MultiHeadAttention, ParallelMultiHeadAttention),
}


def shard(
    model: keras.Model, layout: Mapping[str, str], devices: Devices
) -> keras.Model:
    """Returns a model that computes the same on several devices.

    The model is written for one device; a layout says what becomes of its
    layers. Each device then holds a part of their weights, gradients and
    optimizer slots. A `"row"` layer behind a `"column"` layer goes on with its
    parts where they are.

    The result is an ordinary Keras model, with the weights of the one that was
    given: it is compiled, trained, saved and loaded as usual, and an
    `AccumModel` splits batches as before. `unshard` is the way back.

    Example:

    ```python
    import keras
    from keras_tfopt import distribution

    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(32, activation="gelu", name="up")(inputs)
    outputs = keras.layers.Dense(8, name="down")(hidden)
    model = keras.Model(inputs, outputs)

    devices = ["CPU:0"]  # ["GPU:0", "GPU:1"]
    layout = {"up": "column", "down": "row"}
    model = distribution.shard(model, layout, devices)
    model.compile("adam", "mse")
    ```

    Args:
        model: Functional or Sequential model that is built.
        layout: Dict from names of layers, or patterns such as
            `"block_*_up"`, to `"column"` or `"row"` for `keras.layers.Dense`,
            `"heads"` for `keras.layers.MultiHeadAttention`, or the name of a
            device that gets the layer as it is. The first pattern that fits
            counts. Layers that are not named stay as they are.
        devices: List of names of devices, such as `["GPU:0", "GPU:1"]`. A list
            of such lists divides batches too, one part for each.

    Returns:
        A model of the same class; compiled if the given one is, with a new
        optimizer.

    Raises:
        ValueError: If a pattern names no layer, if a layer cannot have its
            layout, or if a device does not exist.
    """
    mesh = parse_devices(devices)
    rows = [list(row) for row in mesh.rows]
    functional = _functional(model)
    unused = set(layout)

    def convert(layer: keras.layers.Layer) -> keras.layers.Layer:
        fitting = [key for key in layout if fnmatch.fnmatch(layer.name, key)]
        unused.difference_update(fitting)
        if not fitting:
            return _clone(layer)
        return _converted(layer, layout[fitting[0]], rows)

    # The parts of each tensor that is put together; both are kept, so that
    # no identity is used again.
    parts: dict[int, tuple[Any, list[Any]]] = {}

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(layer, RowParallelDense) and id(args[0]) in parts:
            return layer(parts[id(args[0])][1])
        outputs = layer(*args, **kwargs)
        if not isinstance(layer, ColumnParallelDense):
            return outputs
        # Not part of the model unless somebody takes it.
        whole = GatherShards(rows, dtype=layer.dtype_policy)(outputs)
        parts[id(whole)] = whole, outputs
        return whole

    result = _transform(functional, convert, call)
    if unused:
        raise ValueError(
            "Invalid value for argument `layout`. Received: "
            f"{', '.join(map(repr, sorted(unused)))}, which no layer is named "
            f"as. Expected: patterns of {[one.name for one in model.layers]}."
        )
    if result.compiled:
        check_optimizer(result)
    return result


def unshard(model: keras.Model) -> keras.Model:
    """Returns a stock model with the weights of one that `shard` made.

    For saving what other machines shall load, and for serving.

    Example:

    ```python
    import keras
    from keras_tfopt import distribution

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    sharded = distribution.shard(model, {"dense": "column"}, ["CPU:0"])
    distribution.unshard(sharded).save("stock.keras")
    ```

    Args:
        model: Functional model with layers that are sharded or placed.

    Returns:
        A model of the same class without such layers.
    """

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(layer, keras.layers.Identity) and layer in gathers:
            return args[0][0]
        if isinstance(layer, keras.layers.Dense) and isinstance(args[0], list):
            args = (args[0][0],)
        outputs = layer(*args, **kwargs)
        count = copies.get(layer.name)
        return outputs if count is None else [outputs] * count

    gathers: list[Any] = []
    copies: dict[str, int] = {}

    def convert(layer: keras.layers.Layer) -> keras.layers.Layer:
        if isinstance(layer, GatherShards):
            gathers.append(keras.layers.Identity(name=layer.name))
            return gathers[-1]
        if isinstance(layer, ColumnParallelDense) and not layer.gather_output:
            copies[layer.name] = layer.mesh.groups * layer.mesh.shards
        if isinstance(layer, OnDevice):
            return _clone(layer.layer)
        return stock_layer(layer) or _clone(layer)

    return _transform(_functional(model), convert, call)


def _transform(
    model: keras.Model, convert: Callable, call: Callable
) -> keras.Model:
    """Returns a functional model of other layers with the same weights."""
    pairs = []

    def clone(layer: keras.layers.Layer) -> keras.layers.Layer:
        pairs.append((layer, convert(layer)))
        return pairs[-1][1]

    result = keras.models.clone_model(
        model, clone_function=clone, call_function=call, recursive=True
    )
    for before, after in pairs:
        _copy_weights(before, after)
    return result


def _functional(model: keras.Model) -> keras.Model:
    if isinstance(model, keras.Sequential) and model.built:
        plain = keras.Model(model.inputs, model.outputs, name=model.name)
        if model.compiled:
            plain.compile_from_config(model.get_compile_config())
        return plain
    if not getattr(model, "inputs", None):
        raise ValueError(
            "Invalid value for argument `model`. Received: "
            f"'{model.name}' ({type(model).__name__}). Expected: a functional "
            "or a built Sequential model. Subclasses use "
            "`ColumnParallelDense`, `RowParallelDense`, "
            "`ParallelMultiHeadAttention` and `OnDevice` themselves."
        )
    return model


def _clone(layer: keras.layers.Layer) -> keras.layers.Layer:
    return type(layer).from_config(layer.get_config())


def _converted(
    layer: keras.layers.Layer, kind: str, rows: list[list[str]]
) -> keras.layers.Layer:
    if kind in _KINDS:
        stock, parallel = _KINDS[kind]
        if type(layer) is not stock:
            raise ValueError(
                f"Invalid layout {kind!r} for layer '{layer.name}'. Received: "
                f"{type(layer).__name__}. Expected: {stock.__name__}."
            )
        config = parallel_config(layer)
        if parallel is ColumnParallelDense:
            config["gather_output"] = False
        return parallel(devices=rows, **config)
    if isinstance(layer, keras.layers.MultiHeadAttention):
        # It has several inputs.
        return ParallelMultiHeadAttention(
            devices=[kind], **parallel_config(layer)
        )
    return OnDevice(_clone(layer), kind)


def _copy_weights(before: Any, after: Any) -> None:
    if isinstance(after, ShardedLayer) and not isinstance(before, ShardedLayer):
        after.set_whole_weights(before.get_weights())
    elif isinstance(before, ShardedLayer) and not isinstance(
        after, ShardedLayer
    ):
        after.set_weights(before.whole_weights())
    else:
        # Seeds are no weights.
        for source, target in zip(
            before.variables, after.variables, strict=True
        ):
            target.assign(source)
