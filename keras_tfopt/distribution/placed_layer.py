"""A layer on a device: variables, forward and backward pass."""

import inspect
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.devices import run_on
from keras_tfopt.distribution.mesh import parse_devices


@keras.saving.register_keras_serializable(package="keras_tfopt")
class OnDevice(keras.layers.Wrapper):
    """Puts a layer on a device: its variables and all that it computes.

    For models whose layers do not fit on one device together. `tf.device`
    around a layer leaves its backward pass on the default device. `shard` wraps
    the layers of a model by name.

    Example:

    ```python
    import keras
    from keras_tfopt import distribution

    inputs = keras.Input((8,))
    hidden = distribution.OnDevice(keras.layers.Dense(32), "CPU:0")(inputs)
    outputs = distribution.OnDevice(keras.layers.Dense(1), "CPU:0")(hidden)
    model = keras.Model(inputs, outputs)
    ```

    Args:
        layer: Layer of one input (or one nest of them) that has no variables
            yet and adds no losses of its own.
        device: String. Name of the device, such as `"GPU:1"`.
        **kwargs: As for `keras.layers.Layer`.

    Raises:
        ValueError: If the device does not exist, if the layer is built or adds
            losses, or inside the scope of a strategy.
    """

    def __init__(
        self, layer: keras.layers.Layer, device: str, **kwargs: Any
    ) -> None:
        mesh = parse_devices([device])
        if layer.activity_regularizer is not None:
            raise ValueError(
                f"Layer '{layer.name}' adds losses, which would stay on its "
                "device. Received: a layer with `activity_regularizer`. "
                "Expected: none. Use `keras.layers.ActivityRegularization` "
                "behind it."
            )
        # Seeds exist from the start; they are no weights.
        if layer.weights:
            raise ValueError(
                "Invalid value for argument `layer`. Received: "
                f"'{layer.name}', whose variables exist already. Expected: a "
                "layer that is not built, or `shard` for a model that is."
            )
        given = {"name": layer.name, "dtype": layer.dtype_policy}
        super().__init__(layer, **{**given, **kwargs})
        # Keras passes them to a layer that is called, not to its `call`.
        accepted = inspect.signature(layer.call).parameters
        self._accepts_training = "training" in accepted
        self._accepts_mask = "mask" in accepted
        self.device = mesh.home
        # XLA compiles for one device.
        self.supports_jit = False
        self.supports_masking = layer.supports_masking

    def build(self, input_shape: Any) -> None:
        """Builds the layer on the device."""
        with tf.init_scope(), tf.device(self.device):
            super().build(input_shape)

    def call(
        self, inputs: Any, training: bool | None = None, **kwargs: Any
    ) -> Any:
        """Calls the layer on the device."""
        layer = self.layer
        context = dict(kwargs)
        if self._accepts_training:
            context["training"] = training
        if self._accepts_mask and context.get("mask") is None:
            # Were it an argument of this method, a functional model would keep
            # masks as inputs of layers that take none.
            context["mask"] = tf.nest.map_structure(_compat.get_mask, inputs)
        self._check_device()
        with tf.device(self.device):
            weights = [
                tf.convert_to_tensor(v.value) for v in layer.trainable_variables
            ]
            state = [
                tf.convert_to_tensor(v.value)
                for v in layer.non_trainable_variables
            ]

        def compute(inputs: Any, weights: list[tf.Tensor]) -> Any:
            outputs, updates, losses = layer.stateless_call(
                weights, state, inputs, return_losses=True, **context
            )
            self._check_losses(losses)
            return outputs, updates

        outputs, updates = run_on(self.device, compute, inputs, weights)
        for variable, before, after in zip(
            layer.non_trainable_variables, state, updates, strict=True
        ):
            if after is not before:
                variable.assign(after)
        return outputs

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Returns the shape of the layer's output."""
        return self.layer.compute_output_shape(input_shape)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Returns the mask of the layer's output."""
        return self.layer.compute_mask(inputs, previous_mask)

    def get_config(self) -> dict[str, Any]:
        """Returns the config, with the device."""
        return {**super().get_config(), "device": self.device}

    def _check_device(self) -> None:
        for variable in self.layer.trainable_variables:
            value = variable.value
            if not isinstance(value, tf.Variable):
                # In a stateless scope, values are tensors.
                continue
            if not value.device.endswith(f"device:{self.device}"):
                raise ValueError(
                    f"Variable '{variable.path}' is not where its layer is. "
                    f"Received: {value.device}. Expected: {self.device}. "
                    "Build the layer eagerly: call its `build` in `build` of "
                    "the layer that it belongs to."
                )

    def _check_losses(self, losses: list[Any]) -> None:
        known = [
            v
            for v in self.layer.trainable_variables
            if v.regularizer is not None
        ]
        if len(losses) > len(known):
            raise ValueError(
                f"Layer '{self.layer.name}' adds losses, which would stay on "
                "its device. Received: a layer with `add_loss` or "
                "`activity_regularizer`. Expected: neither."
            )
