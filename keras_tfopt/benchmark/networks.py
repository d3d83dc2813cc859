"""The networks that are measured: a perceptron, a convnet, a transformer."""

from collections.abc import Callable
import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_CLASSES = 10


@dataclasses.dataclass(frozen=True)
class Network:
    """A network with data to train it on.

    Attributes:
        name: String.
        input_shape: Tuple of integers. Shape of one example.
        layers: Callable that maps the symbolic inputs to the features.
        batch_size: Integer. Rows of an effective batch.
    """

    name: str
    input_shape: tuple[int, ...]
    layers: Callable[[Any], Any]
    batch_size: int

    def build(
        self,
        model_class: Callable[..., keras.Model],
        optimizer: Any = None,
        **compile_arguments: Any,
    ) -> keras.Model:
        """Builds and compiles the network from a fixed seed.

        Args:
            model_class: Called with inputs and outputs.
            optimizer: Keras optimizer. Defaults to Adam.
            **compile_arguments: As for `keras.Model.compile`.

        Returns:
            A compiled model.
        """
        keras.utils.set_random_seed(0)
        inputs = keras.Input(self.input_shape)
        outputs = keras.layers.Dense(_CLASSES)(self.layers(inputs))
        model = model_class(inputs, outputs)
        model.compile(
            optimizer or keras.optimizers.Adam(1e-3),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            **compile_arguments,
        )
        return model

    def data(self, batches: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns random examples and classes for some effective batches."""
        random = np.random.default_rng(0)
        rows = batches * self.batch_size
        x = random.normal(size=(rows, *self.input_shape)).astype("float32")
        return x, random.integers(0, _CLASSES, size=(rows,))

    def dataset(self, batches: int, batch_size: int) -> tf.data.Dataset:
        """Returns `data` in batches, held in memory once they were drawn."""
        data = tf.data.Dataset.from_tensor_slices(self.data(batches))
        return data.batch(batch_size).cache().prefetch(2)


def _perceptron(inputs: Any) -> Any:
    outputs = inputs
    for _ in range(12):
        outputs = keras.layers.Dense(128, activation="relu")(outputs)
    return outputs


def _convnet(inputs: Any) -> Any:
    outputs = inputs
    for filters in (16, 32, 32):
        outputs = keras.layers.Conv2D(filters, 3, padding="same")(outputs)
        outputs = keras.layers.BatchNormalization()(outputs)
        outputs = keras.layers.ReLU()(outputs)
    return keras.layers.GlobalAveragePooling2D()(outputs)


def _transformer(inputs: Any) -> Any:
    outputs = inputs
    for _ in range(2):
        attention = keras.layers.MultiHeadAttention(4, 16)(outputs, outputs)
        outputs = keras.layers.LayerNormalization()(outputs + attention)
        hidden = keras.layers.Dense(256, activation="gelu")(outputs)
        hidden = keras.layers.Dense(64)(hidden)
        outputs = keras.layers.LayerNormalization()(outputs + hidden)
    return keras.layers.GlobalAveragePooling1D()(outputs)


NETWORKS = (
    Network("MLP", (64,), _perceptron, 8192),
    Network("convnet", (16, 16, 3), _convnet, 256),
    Network("transformer", (32, 64), _transformer, 128),
)

# A step of some milliseconds.
SMALL = Network("small MLP", (64,), _perceptron, 512)

# A step of about one millisecond, where several run in a call.
LITTLE = Network("little MLP", (64,), _perceptron, 32)

# So small that a step is mostly what Keras does around it.
TINY = Network(
    "tiny MLP",
    (16,),
    lambda inputs: keras.layers.Dense(16, activation="relu")(inputs),
    20,
)
