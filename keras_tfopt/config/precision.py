"""Mixed precision as a configuration asks for it."""

from collections.abc import Iterator
import contextlib
import logging
from typing import Any

import keras

from keras_tfopt import _compat
from keras_tfopt.config.schema import MixedPrecision
from keras_tfopt.memory.mixed_precision import advise_compute_dtype
from keras_tfopt.memory.mixed_precision import half_precision_risks

_logger = logging.getLogger("keras_tfopt")


def policy_of(section: MixedPrecision) -> tuple[str | None, str]:
    """Returns Keras' dtype policy for a section, or none, and why.

    Args:
        section: `MixedPrecision`.
    """
    if section.compute_dtype is None:
        advice = advise_compute_dtype()
        dtype, reason = advice.compute_dtype, advice.reason
    else:
        dtype, reason = section.compute_dtype, "as configured"
    if dtype is None:
        return None, reason
    return "float32" if dtype == "float32" else f"mixed_{dtype}", reason


@contextlib.contextmanager
def policy_scope(policy: str) -> Iterator[None]:
    """Builds layers under a dtype policy, and puts the former one back."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def warn_of_risks(model: keras.Model) -> keras.Model:
    """Logs where a model computes in half precision what needs float32."""
    for risk in half_precision_risks(model):
        _logger.warning(
            "In model '%s' %s. Give it dtype='float32'.", model.name, risk
        )
    return model


class LossScale(keras.callbacks.Callback):
    """Sets the first loss scale of an optimizer that scales the loss.

    Args:
        scale: Float. The first scale, which then adapts.
    """

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def on_train_begin(self, logs: Any = None) -> None:
        """Sets it, unless the optimizer has made updates."""
        optimizer = self.model.optimizer
        if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise ValueError(
                "A loss scale is configured, and the optimizer scales no loss. "
                f"Received: optimizer={type(optimizer).__name__}. Expected: "
                "a model built and compiled in float16, or loss_scale: dynamic."
            )
        if not optimizer.built:
            optimizer.initial_scale = self.scale
        elif int(optimizer.iterations.numpy()) == 0:
            optimizer.dynamic_scale.assign(self.scale)


def recast(model: keras.Model, policy: str) -> keras.Model:
    """Returns a copy of a compiled model under another dtype policy.

    Layers that make outputs keep theirs, so that the loss sees float32.

    Args:
        model: A functional or sequential model with Keras' own objects in
            `compile`.
        policy: String. Name of the policy.

    Returns:
        A compiled model with weights of its own, of the same values.

    Raises:
        ValueError: If Keras cannot clone the model.
    """
    last = {
        _compat.producer_of(output).name
        for output in keras.tree.flatten(model.outputs)
    }

    def copy_layer(layer: keras.layers.Layer) -> keras.layers.Layer:
        config = layer.get_config()
        if layer.name not in last and "dtype" in config:
            config["dtype"] = policy
        return type(layer).from_config(config)

    copy = keras.models.clone_model(model, clone_function=copy_layer)
    copy.set_weights(model.get_weights())
    copy.compile_from_config(model.get_compile_config())
    return copy
