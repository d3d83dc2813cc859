"""What models with layers in pieces on several devices cannot have."""

import keras

from keras_tfopt import _compat
from keras_tfopt.distribution.placed_layer import OnDevice
from keras_tfopt.distribution.sharded_layer import ShardedLayer
from keras_tfopt.plan import ExecutionPlan

# They look at a variable as a whole, and would see its pieces.
_WHOLE_VARIABLES = ("Adafactor", "Lamb", "Muon")


def check_devices(model: keras.Model, plan: ExecutionPlan) -> None:
    """Raises if a model on several devices cannot run under a plan.

    Args:
        model: A compiled Keras model.
        plan: `ExecutionPlan`.

    Raises:
        ValueError: If XLA is to compile it, or as `check_optimizer` does.
    """
    placed = [
        layer.name
        for layer in _compat.layers_of(model)
        if isinstance(layer, (OnDevice, ShardedLayer))
    ]
    if placed and plan.jit_compile:
        raise ValueError(
            "XLA compiles for one device. Received: jit_compile=True for a "
            f"model with {', '.join(map(repr, placed))} on others. Expected: "
            "jit_compile=False."
        )
    check_optimizer(model)


def check_optimizer(model: keras.Model) -> None:
    """Raises if an optimizer would update pieces in another way than wholes.

    Args:
        model: A compiled Keras model.

    Raises:
        ValueError: If layers are sharded and the optimizer uses norms or
            factors of each variable.
    """
    optimizer = getattr(model, "optimizer", None)
    layers = _compat.layers_of(model)
    if optimizer is None or not any(
        isinstance(layer, ShardedLayer) for layer in layers
    ):
        return
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    received = type(optimizer).__name__
    if optimizer.clipnorm is not None:
        received = f"clipnorm={optimizer.clipnorm}"
    elif not any(
        base.__name__ in _WHOLE_VARIABLES for base in type(optimizer).__mro__
    ):
        return
    raise ValueError(
        "An optimizer that uses norms or factors of each variable would update "
        "the pieces of sharded layers in another way than whole ones. "
        f"Received: {received}. Expected: `global_clipnorm` or `clipvalue`, "
        f"and none of {', '.join(_WHOLE_VARIABLES)}."
    )
