"""Dense layers whose kernels are divided by columns or by rows."""

from typing import Any

import keras
import tensorflow as tf

from keras_tfopt.devices import fan_out
from keras_tfopt.devices import run_on
from keras_tfopt.distribution.mesh import Devices
from keras_tfopt.distribution.mesh import split_sizes
from keras_tfopt.distribution.sharded_layer import KernelAndBiasLayer
from keras_tfopt.distribution.sharded_layer import ShardedLayer

# They look at all units of an example at once.
_COUPLING = ("softmax", "log_softmax", "sparsemax", "glu")


class _ParallelDense(KernelAndBiasLayer):
    """The arguments that both layers share with `keras.layers.Dense`."""

    def __init__(
        self,
        units: int,
        devices: Devices,
        activation: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(devices, **kwargs)
        if not isinstance(units, int) or units < 1:
            raise ValueError(
                "Invalid value for argument `units`. Received: "
                f"units={units!r}. Expected: a positive integer."
            )
        self.units = units
        self.activation = keras.activations.get(activation)

    def _add_kernel(self, size: int, axis: int) -> None:
        self._add_sharded(
            "kernel",
            (size, self.units),
            axis,
            1 - axis,
            self.kernel_initializer,
            self.kernel_regularizer,
        )

    def _add_bias(self, axis: int | None) -> None:
        if self.use_bias:
            self._add_sharded(
                "bias",
                (self.units,),
                axis,
                None,
                self.bias_initializer,
                self.bias_regularizer,
            )
        self._track_shards()

    def get_config(self) -> dict[str, Any]:
        """Returns the config."""
        return {
            **super().get_config(),
            "units": self.units,
            "activation": keras.activations.serialize(self.activation),
        }


@keras.saving.register_keras_serializable(package="keras_tfopt")
class ColumnParallelDense(_ParallelDense):
    """`keras.layers.Dense` of which each device computes some of the units.

    For kernels that are too large for one device: each holds its columns, with
    their gradients and optimizer slots. Forward and backward pass are those of
    the whole layer, and so are the initial weights for the same seed. With
    `gather_output=False` the units stay where they are, for a
    `RowParallelDense` to go on with; the pair then needs one sum in place of
    two exchanges.

    With rows of devices, each row computes a part of the batch. Kernels are
    divided over all devices, and those of a row are put together when they are
    needed.

    Example:

    ```python
    import keras
    from keras_tfopt import distribution

    devices = ["CPU:0"]  # ["GPU:0", "GPU:1"]
    inputs = keras.Input((8,))
    hidden = distribution.ColumnParallelDense(
        32, devices, activation="gelu", gather_output=False
    )(inputs)
    outputs = distribution.RowParallelDense(8, devices)(hidden)
    model = keras.Model(inputs, outputs)
    ```

    Args:
        units: Integer. Units of the whole layer.
        devices: List of names of devices, such as `["GPU:0", "GPU:1"]`, or of
            such lists, one for each part of a batch.
        activation: As for `keras.layers.Dense`; one that works element by
            element. Defaults to `None`.
        use_bias: Boolean. Defaults to `True`.
        kernel_initializer: As for `keras.layers.Dense`.
        bias_initializer: As for `keras.layers.Dense`.
        kernel_regularizer: L1, L2 or L1L2. Defaults to `None`.
        bias_regularizer: L1, L2 or L1L2. Defaults to `None`.
        gather_output: Boolean. Whether the output is one tensor, or a list
            with that of each device. Defaults to `True`.
        **kwargs: As for `keras.layers.Layer`.

    Raises:
        ValueError: If a device does not exist, in the scope of a strategy, or
            if an argument needs the whole layer on one device.

    Reference:
        Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language
        Models Using Model Parallelism", 2019, https://arxiv.org/abs/1909.08053
    """

    def __init__(
        self,
        units: int,
        devices: Devices,
        activation: Any = None,
        gather_output: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(units, devices, activation, **kwargs)
        name = getattr(self.activation, "__name__", None)
        if name in _COUPLING:
            raise ValueError(
                "Invalid value for argument `activation`. Received: "
                f"activation={name!r}. Expected: one that works element by "
                "element, as no device has all units. Use "
                f"`keras.layers.Activation({name!r})` behind the layer."
            )
        self.gather_output = gather_output

    def build(self, input_shape: tuple) -> None:
        """Creates the shards."""
        self._add_kernel(input_shape[-1], axis=1)
        self._add_bias(axis=0)

    def call(self, inputs: tf.Tensor) -> Any:
        """Computes the units of each device."""
        groups = zip(self._split_rows(inputs), self._read(), strict=True)
        parts: list[tf.Tensor] = []
        for row, (x, weights) in zip(self.mesh.rows, groups, strict=True):
            copies = fan_out(row[0], x, len(row))
            parts += map(
                run_on, row, [self._compute] * len(row), copies, weights
            )
        return self._concat_columns(parts) if self.gather_output else parts

    def _compute(self, x: tf.Tensor, weights: dict[str, Any]) -> tf.Tensor:
        x = keras.ops.matmul(x, self._joined("kernel", weights["kernel"]))
        if self.use_bias:
            x = keras.ops.add(x, self._joined("bias", weights["bias"]))
        return self.activation(x)

    def compute_output_shape(self, input_shape: tuple) -> Any:
        """Returns the shape of the output, or those of all parts."""
        leading = tuple(input_shape[:-1])
        if self.gather_output:
            return (*leading, self.units)
        if self.mesh.groups > 1:
            leading = (None, *leading[1:])
        widths = split_sizes(self.units, self.mesh.shards)
        return [(*leading, width) for width in widths] * self.mesh.groups

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        """Returns the mask of each output."""
        if previous_mask is None or self.gather_output:
            return previous_mask
        return [
            part
            for part in self._split_mask(previous_mask)
            for _ in range(self.mesh.shards)
        ]

    def get_config(self) -> dict[str, Any]:
        """Returns the config."""
        return {**super().get_config(), "gather_output": self.gather_output}


@keras.saving.register_keras_serializable(package="keras_tfopt")
class RowParallelDense(_ParallelDense):
    """`keras.layers.Dense` of which each device computes with some inputs.

    Each device holds the rows of the kernel for its inputs; their products are
    added up on the first device. See `ColumnParallelDense`, which it follows.

    Args:
        units: Integer. Units of the layer.
        devices: As for `ColumnParallelDense`.
        **kwargs: As for `ColumnParallelDense`, without `gather_output`; any
            activation.

    Raises:
        ValueError: As `ColumnParallelDense` does.
    """

    def build(self, input_shape: Any) -> None:
        """Creates the shards."""
        shapes = [input_shape]
        if not isinstance(input_shape[-1], int):
            shapes = self._by_row(list(input_shape))[0]
        self._add_kernel(sum(shape[-1] for shape in shapes), axis=0)
        self._add_bias(axis=None)

    def call(self, inputs: Any) -> tf.Tensor:
        """Adds up the products of all devices."""
        if isinstance(inputs, (list, tuple)):
            groups = self._by_row(list(inputs))
        else:
            parts = self._split_rows(inputs)
            groups = [self._split_columns(*part) for part in enumerate(parts)]
        outputs = []
        for row, xs, weights in zip(
            self.mesh.rows, groups, self._read(), strict=True
        ):
            products = [
                run_on(device, self._multiply, x, own["kernel"])
                for device, x, own in zip(row, xs, weights, strict=True)
            ]
            bias = weights[0].get("bias", [])
            outputs.append(run_on(row[0], self._add, products, bias))
        return self._concat_rows(outputs)

    def _multiply(self, x: tf.Tensor, kernel: list[tf.Tensor]) -> tf.Tensor:
        return keras.ops.matmul(x, self._joined("kernel", kernel))

    def _add(
        self, products: list[tf.Tensor], bias: list[tf.Tensor]
    ) -> tf.Tensor:
        x = tf.add_n(products)
        if self.use_bias:
            x = keras.ops.add(x, self._joined("bias", bias))
        return self.activation(x)

    def compute_output_shape(self, input_shape: Any) -> tuple:
        """Returns the shape of the output."""
        if not isinstance(input_shape[-1], int):
            input_shape = input_shape[0]
        return (*input_shape[:-1], self.units)

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        """Returns the mask of the inputs."""
        if not isinstance(previous_mask, (list, tuple)):
            return previous_mask
        return self._concat_masks(previous_mask)


@keras.saving.register_keras_serializable(package="keras_tfopt")
class GatherShards(ShardedLayer):
    """Puts the parts of a `ColumnParallelDense` together again.

    `shard` puts it behind layers whose parts nobody takes.

    Args:
        devices: Those of the layer before it.
        **kwargs: As for `keras.layers.Layer`.

    Raises:
        ValueError: As `ColumnParallelDense` does.
    """

    def call(self, inputs: list[tf.Tensor]) -> tf.Tensor:
        """Returns one tensor."""
        return self._concat_columns(list(inputs))

    def compute_output_shape(self, input_shape: list[tuple]) -> tuple:
        """Returns the shape of the whole."""
        group = self._by_row(list(input_shape))[0]
        return (*group[0][:-1], sum(shape[-1] for shape in group))

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        """Returns the mask of the parts."""
        return self._concat_masks(previous_mask)
