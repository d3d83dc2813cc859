"""Multi-head attention whose heads are divided among devices."""

from collections.abc import Callable
import math
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt._compat_placement import remove_mask
from keras_tfopt.devices import fan_out
from keras_tfopt.devices import run_on
from keras_tfopt.distribution.mesh import Devices
from keras_tfopt.distribution.sharded_layer import KernelAndBiasLayer


@keras.saving.register_keras_serializable(package="keras_tfopt")
class ParallelMultiHeadAttention(KernelAndBiasLayer):
    """`keras.layers.MultiHeadAttention` with some heads on each device.

    Each device holds the projections of its heads, with gradients and optimizer
    slots, and computes and keeps their attention. What the heads put out is
    added up on the first device. `shard` gives it the weights of a stock layer;
    without, it begins with other weights than that would.

    Attention is that over sequences, without dropout of its own: put
    `keras.layers.Dropout` or `PerExampleDropout` behind the layer.

    Example:

    ```python
    import keras
    from keras_tfopt import distribution

    inputs = keras.Input((16, 8))
    attention = distribution.ParallelMultiHeadAttention(
        num_heads=4, key_dim=2, devices=["CPU:0"]
    )
    outputs = attention(inputs, inputs, use_causal_mask=True)
    model = keras.Model(inputs, outputs)
    ```

    Args:
        num_heads: Integer. Heads of the whole layer.
        key_dim: Integer. Size of a head for queries and keys.
        devices: As for `ColumnParallelDense`.
        value_dim: Integer. Size of a head for values. Defaults to `None`,
            which means `key_dim`.
        use_bias: Boolean. Defaults to `True`.
        output_dim: Integer. Size of the output. Defaults to `None`, which
            means that of the queries.
        kernel_initializer: As for the stock layer.
        bias_initializer: As for the stock layer.
        kernel_regularizer: L1, L2 or L1L2. Defaults to `None`.
        bias_regularizer: L1, L2 or L1L2. Defaults to `None`.
        **kwargs: As for `keras.layers.Layer`.

    Raises:
        ValueError: As `ColumnParallelDense` does.

    Reference:
        Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language
        Models Using Model Parallelism", 2019, https://arxiv.org/abs/1909.08053
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        devices: Devices,
        value_dim: int | None = None,
        use_bias: bool = True,
        output_dim: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(devices, use_bias, **kwargs)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim or key_dim
        self.output_dim = output_dim

    def build(
        self,
        query_shape: tuple,
        value_shape: tuple,
        key_shape: tuple | None = None,
    ) -> None:
        """Creates the shards."""
        key_shape = key_shape or value_shape
        for name, shape in (("query", query_shape), ("value", value_shape)):
            if len(shape) != 3:
                raise ValueError(
                    f"Invalid value for argument `{name}`. Received: shape="
                    f"{shape}. Expected: sequences of vectors, of rank 3."
                )
        heads, width = self.num_heads, self.key_dim
        self._add_projection("query", query_shape[-1], width)
        self._add_projection("key", key_shape[-1], width)
        self._add_projection("value", value_shape[-1], self.value_dim)
        size = self.output_dim or query_shape[-1]
        kernel, bias = self._initializers()
        self._add_sharded(
            "output_kernel",
            (heads, self.value_dim, size),
            0,
            2,
            kernel,
            self.kernel_regularizer,
        )
        if self.use_bias:
            self._add_sharded(
                "output_bias", (size,), None, None, bias, self.bias_regularizer
            )
        self._track_shards()

    def _add_projection(self, name: str, size: int, width: int) -> None:
        kernel, bias = self._initializers()
        self._add_sharded(
            f"{name}_kernel",
            (size, self.num_heads, width),
            1,
            0,
            kernel,
            self.kernel_regularizer,
        )
        if self.use_bias:
            self._add_sharded(
                f"{name}_bias",
                (self.num_heads, width),
                0,
                None,
                bias,
                self.bias_regularizer,
            )

    def _initializers(self) -> tuple[Callable, Callable]:
        """Returns initializers that draw anew, as the stock layer does."""
        kernel, bias = self.kernel_initializer, self.bias_initializer
        return (
            type(kernel).from_config(kernel.get_config()),
            type(bias).from_config(bias.get_config()),
        )

    def call(
        self,
        query: tf.Tensor,
        value: tf.Tensor,
        key: tf.Tensor | None = None,
        query_mask: tf.Tensor | None = None,
        value_mask: tf.Tensor | None = None,
        key_mask: tf.Tensor | None = None,
        attention_mask: tf.Tensor | None = None,
        use_causal_mask: bool = False,
    ) -> tf.Tensor:
        """Adds up what the heads of all devices put out."""
        key = value if key is None else key
        mask = _merged_mask(
            query,
            value,
            (query_mask, value_mask, key_mask),
            attention_mask,
            use_causal_mask,
        )
        for one in (query, key, value):
            # As the stock layer does: a residual connection around it then has
            # no mask either.
            remove_mask(one)
        # What is given twice is copied to a device once.
        sources = {id(one): one for one in (query, key, value)}
        groups = [self._split_rows(one) for one in sources.values()]
        masks: list[Any] = [None] * self.mesh.groups
        if mask is not None:
            masks = self._split_rows(mask)
        outputs = []
        for index, (row, own, weights) in enumerate(
            zip(self.mesh.rows, masks, self._read(), strict=True)
        ):
            copies = [fan_out(row[0], one[index], len(row)) for one in groups]
            parts = [
                run_on(
                    device,
                    self._attend(own),
                    *(
                        dict(zip(sources, given, strict=True))[id(one)]
                        for one in (query, key, value)
                    ),
                    {
                        k: v
                        for k, v in own_weights.items()
                        if k != "output_bias"
                    },
                )
                for device, *given, own_weights in zip(
                    row, *copies, weights, strict=True
                )
            ]
            bias = weights[0].get("output_bias", [])
            outputs.append(run_on(row[0], self._add, parts, bias))
        return self._concat_rows(outputs)

    def _attend(self, mask: tf.Tensor | None) -> Callable:
        """Returns the attention of the heads of one device."""

        def attend(
            query: tf.Tensor,
            key: tf.Tensor,
            value: tf.Tensor,
            weights: dict[str, list[tf.Tensor]],
        ) -> tf.Tensor:
            heads = keras.ops.dot_product_attention(
                self._project("query", query, weights),
                self._project("key", key, weights),
                self._project("value", value, weights),
                mask=None if mask is None else mask[:, None],
                scale=1.0 / math.sqrt(self.key_dim),
                flash_attention=False,
            )
            kernel = self._joined("output_kernel", weights["output_kernel"])
            return keras.ops.einsum("btnh,nhe->bte", heads, kernel)

        return attend

    def _project(
        self, name: str, inputs: tf.Tensor, weights: dict[str, list[tf.Tensor]]
    ) -> tf.Tensor:
        kernel = self._joined(f"{name}_kernel", weights[f"{name}_kernel"])
        outputs = keras.ops.einsum("btd,dnh->btnh", inputs, kernel)
        if self.use_bias:
            outputs += self._joined(f"{name}_bias", weights[f"{name}_bias"])
        return outputs

    def _add(self, parts: list[tf.Tensor], bias: list[tf.Tensor]) -> tf.Tensor:
        outputs = tf.add_n(parts)
        if self.use_bias:
            outputs += self._joined("output_bias", bias)
        return outputs

    def compute_output_shape(
        self,
        query_shape: tuple,
        value_shape: tuple,
        key_shape: tuple | None = None,
    ) -> tuple:
        """Returns the shape of the output."""
        return (*query_shape[:-1], self.output_dim or query_shape[-1])

    def get_config(self) -> dict[str, Any]:
        """Returns the config."""
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "output_dim": self.output_dim,
        }


def _merged_mask(
    query: tf.Tensor,
    value: tf.Tensor,
    padding: tuple[tf.Tensor | None, ...],
    attention_mask: tf.Tensor | None,
    is_causal: bool,
) -> tf.Tensor | None:
    """Returns which queries may look at which keys, `(rows, T, S)`."""
    query_mask, *key_masks = padding
    masks = []
    if query_mask is not None:
        masks.append(tf.cast(query_mask, tf.bool)[:, :, None])
    masks += [
        tf.cast(mask, tf.bool)[:, None, :]
        for mask in key_masks
        if mask is not None
    ]
    shape = [tf.shape(query)[0], tf.shape(query)[1], tf.shape(value)[1]]
    if is_causal:
        masks.append(tf.range(shape[1])[:, None] >= tf.range(shape[2]))
    if attention_mask is not None:
        if len(attention_mask.shape) > 3:
            raise ValueError(
                "Invalid value for argument `attention_mask`. Received: rank "
                f"{len(attention_mask.shape)}. Expected: one mask for all "
                "heads, which broadcasts to (rows, queries, keys)."
            )
        masks.append(tf.cast(attention_mask, tf.bool))
    if not masks:
        return None
    total = tf.ones(shape, tf.bool)
    for mask in masks:
        total = tf.logical_and(total, mask)
    return total
