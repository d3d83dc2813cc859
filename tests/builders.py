"""Small models, data, and probes into compiled steps that tests share."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def regression_data(
    rows: int = 13, shape: tuple[int, ...] = (6,), seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs and one target per row, from a fixed seed."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, *shape)).astype("float32")
    return x, random.normal(size=(rows, 1)).astype("float32")


def stack(
    cls: type,
    layers: list[keras.layers.Layer],
    inputs: Any = None,
    optimizer: Any = "sgd",
    metrics: Any = None,
    **settings: Any,
) -> keras.Model:
    """Compiles a functional model of layers in a row.

    Args:
        cls: Class of the model.
        layers: List of the layers; `Flatten` and `Dense(1)` follow.
        inputs: `keras.Input`. Defaults to one of six features.
        optimizer: As for `compile`.
        metrics: As for `compile`.
        **settings: As for `cls`.
    """
    inputs = keras.Input((6,)) if inputs is None else inputs
    outputs = inputs
    for layer in layers:
        outputs = layer(outputs)
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(outputs))
    model = cls(inputs, outputs, **settings)
    model.compile(optimizer, "mse", metrics=metrics)
    return model


@keras.saving.register_keras_serializable("tests")
class Probe(keras.layers.Layer):
    """Passes values, and their gradients, through Python functions.

    The functions are declared to have no effects, so that the layer may stand
    in a step that is split.

    Args:
        forward: Callable of a NumPy array, for the forward pass, or `None`.
        backward: Callable of a NumPy array, for the backward pass, or `None`.
        **kwargs: As for `keras.layers.Layer`.
    """

    def __init__(
        self,
        forward: Callable | None = None,
        backward: Callable | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.forward = forward
        self.backward = backward

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Passes values through the forward function."""

        @tf.custom_gradient
        def passed(values: tf.Tensor) -> tuple:
            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                return through_python(self.backward, upstream)

            return through_python(self.forward, values), gradient

        return passed(inputs)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        """Returns the shape of the inputs."""
        return input_shape


def through_python(function: Callable | None, values: tf.Tensor) -> tf.Tensor:
    """Shows a tensor to a Python function while the graph runs."""
    if function is None:
        return tf.identity(values)

    def show(array: np.ndarray) -> np.ndarray:
        function(array)
        return array

    result = tf.numpy_function(show, [values], values.dtype, stateful=False)
    result.set_shape(values.shape)
    return result


class Fault:
    """A function for `Probe` that fails when it is told to.

    Args:
        error: Exception to raise.
    """

    def __init__(self, error: type[Exception] = MemoryError) -> None:
        self._error = error
        self._countdown: int | None = None

    def arm(self, calls: int = 1) -> None:
        """Lets the given one of the next calls fail, and those after it."""
        self._countdown = calls

    def disarm(self) -> None:
        """Lets all calls succeed."""
        self._countdown = None

    def __call__(self, array: np.ndarray) -> None:
        """Fails, or does nothing."""
        if self._countdown is None:
            return
        self._countdown -= 1
        if self._countdown <= 0:
            raise self._error("injected")
