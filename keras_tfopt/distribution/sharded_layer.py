"""What layers whose weights are in pieces on several devices share."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_tfopt.devices import run_on
from keras_tfopt.distribution.mesh import Devices
from keras_tfopt.distribution.mesh import parse_devices
from keras_tfopt.distribution.mesh import split_sizes
from keras_tfopt.distribution.sharded_weight import ShardedWeight

# Sums over elements: those of the pieces are that of the whole.
_SUMS = (
    keras.regularizers.L1,
    keras.regularizers.L2,
    keras.regularizers.L1L2,
)


class ShardedLayer(keras.layers.Layer):
    """Base of the layers that are computed on several devices at once.

    Weights are saved as a whole, so that weight files do not depend on the
    number of devices.

    Args:
        devices: As for `ColumnParallelDense`.
        **kwargs: As for `keras.layers.Layer`.

    Attributes:
        mesh: `Mesh` of the devices.
    """

    def __init__(self, devices: Devices, **kwargs: Any) -> None:
        if kwargs.get("activity_regularizer") is not None:
            raise ValueError(
                "Invalid value for argument `activity_regularizer`. Received: "
                f"{kwargs['activity_regularizer']!r}. Expected: None. Use "
                "`keras.layers.ActivityRegularization` behind the layer."
            )
        super().__init__(**kwargs)
        self.mesh = parse_devices(devices)
        # XLA compiles for one device.
        self.supports_jit = False
        self.supports_masking = True
        self._sharded: dict[str, ShardedWeight] = {}

    def whole_weights(self) -> list[np.ndarray]:
        """Returns the weights as those of the stock layer, in its order."""
        return [weight.numpy() for weight in self._sharded.values()]

    def set_whole_weights(self, weights: list[Any]) -> None:
        """Assigns weights as those of the stock layer, in its order.

        Args:
            weights: List of arrays.

        Raises:
            ValueError: If their number or a shape is another one.
        """
        for weight, value in zip(self._sharded.values(), weights, strict=True):
            weight.assign(value)

    def save_own_variables(self, store: dict) -> None:
        """Saves the weights as a whole."""
        for index, value in enumerate(self.whole_weights()):
            store[str(index)] = value

    def load_own_variables(self, store: dict) -> None:
        """Loads weights that were saved on any number of devices."""
        self.set_whole_weights(
            [store[str(index)] for index in range(len(store.keys()))]
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the config, with the devices."""
        rows = [list(row) for row in self.mesh.rows]
        return {**super().get_config(), "devices": rows}

    def _add_sharded(
        self,
        name: str,
        shape: tuple[int, ...],
        axis: int | None,
        across: int | None,
        initializer: Callable,
        regularizer: Any,
    ) -> None:
        """Creates a weight; see `ShardedWeight`."""
        self._sharded[name] = ShardedWeight(
            self.mesh,
            name,
            shape,
            axis,
            across,
            initializer,
            regularizer,
            self.variable_dtype,
        )

    def _track_shards(self) -> None:
        """Shows Keras the variables, once all of them are created."""
        self._shards = [
            variable
            for weight in self._sharded.values()
            for pieces in weight.pieces
            for variable in pieces
        ]

    def _joined(self, name: str, pieces: list[tf.Tensor]) -> tf.Tensor:
        return self._sharded[name].join(pieces, self.compute_dtype)

    def _read(self) -> list[list[dict[str, list[tf.Tensor]]]]:
        """Returns what each device needs, by row and column of the mesh."""
        read = {name: weight.read() for name, weight in self._sharded.items()}
        return [
            [
                {
                    name: groups[row][column]
                    for name, groups in read.items()
                    if column < len(groups[row])
                }
                for column in range(self.mesh.shards)
            ]
            for row in range(self.mesh.groups)
        ]

    def _split_rows(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Returns the part of a batch for each row of the mesh."""
        count = self.mesh.groups
        if count == 1:
            return [inputs]

        def split(x: tf.Tensor) -> list[tf.Tensor]:
            bounds = [i * tf.shape(x)[0] // count for i in range(count + 1)]
            sizes = tf.stack(bounds[1:]) - tf.stack(bounds[:-1])
            return tf.split(x, sizes, 0, num=count)

        return run_on(self.mesh.home, split, inputs)

    def _split_mask(self, mask: Any) -> list[Any]:
        """Returns the part of a mask for each row of the mesh."""
        if not tf.is_tensor(mask):
            # Keras calls layers with symbols.
            return [mask] * self.mesh.groups
        return self._split_rows(mask)

    def _concat_masks(self, masks: Any) -> Any:
        """Returns the mask of a whole batch from the masks of all parts."""
        firsts = [masks[0] for masks in self._by_row(list(masks))]
        return (
            self._concat_rows(firsts) if tf.is_tensor(firsts[0]) else firsts[0]
        )

    def _split_columns(self, row: int, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Returns the columns of the inputs that each device needs."""
        sizes = split_sizes(inputs.shape[-1], self.mesh.shards)
        if len(sizes) == 1:
            return [inputs]
        device = self.mesh.rows[row][0]
        return run_on(device, lambda x: tf.split(x, sizes, -1), inputs)

    def _concat_rows(self, parts: list[tf.Tensor]) -> tf.Tensor:
        """Returns the whole batch of what each row of the mesh has."""
        if len(parts) == 1:
            return parts[0]
        return run_on(self.mesh.home, lambda *x: tf.concat(x, 0), *parts)

    def _concat_columns(self, parts: list[tf.Tensor]) -> tf.Tensor:
        """Returns all columns of all rows; `parts` are in the mesh's order."""
        rows = []
        for row, group in enumerate(self._by_row(parts)):
            if len(group) > 1:
                home = self.mesh.rows[row][0]
                group = [run_on(home, lambda *x: tf.concat(x, -1), *group)]
            rows += group
        return self._concat_rows(rows)

    def _by_row(self, parts: list[Any]) -> list[list[Any]]:
        """Returns a list in the mesh's order as a list for each row."""
        width = self.mesh.shards
        if len(parts) != width * self.mesh.groups:
            raise ValueError(
                f"Layer '{self.name}' takes one part from each device. "
                f"Received: {len(parts)} parts. Expected: "
                f"{width * self.mesh.groups}, from a layer with the same "
                "`devices` and `gather_output=False`."
            )
        return [
            list(parts[start : start + width])
            for start in range(0, len(parts), width)
        ]


class KernelAndBiasLayer(ShardedLayer):
    """Base of the layers whose weights are kernels and biases.

    Args:
        devices: As for `ColumnParallelDense`.
        use_bias: Boolean. Defaults to `True`.
        kernel_initializer: As for the stock layer.
        bias_initializer: As for the stock layer.
        kernel_regularizer: L1, L2 or L1L2. Defaults to `None`.
        bias_regularizer: L1, L2 or L1L2. Defaults to `None`.
        **kwargs: As for `keras.layers.Layer`.
    """

    def __init__(
        self,
        devices: Devices,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(devices, **kwargs)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = _check_regularizer(
            "kernel_regularizer", kernel_regularizer
        )
        self.bias_regularizer = _check_regularizer(
            "bias_regularizer", bias_regularizer
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the config."""
        serialize = keras.saving.serialize_keras_object
        return {
            **super().get_config(),
            "use_bias": self.use_bias,
            "kernel_initializer": serialize(self.kernel_initializer),
            "bias_initializer": serialize(self.bias_initializer),
            "kernel_regularizer": serialize(self.kernel_regularizer),
            "bias_regularizer": serialize(self.bias_regularizer),
        }


def _check_regularizer(name: str, regularizer: Any) -> Any:
    """Returns a regularizer that the pieces of a weight can have.

    Args:
        name: String. Name of the argument.
        regularizer: As for a Keras layer.

    Raises:
        ValueError: If it is no sum over elements.
    """
    regularizer = keras.regularizers.get(regularizer)
    if regularizer is not None and type(regularizer) not in _SUMS:
        raise ValueError(
            f"Invalid value for argument `{name}`. Received: {name}="
            f"{type(regularizer).__name__}. Expected: L1, L2 or L1L2, which "
            "are sums over elements: no device sees the whole weight."
        )
    return regularizer
