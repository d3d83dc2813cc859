"""The private names of Keras that placing variables on devices needs.

`tests/test_compat_placement.py` fails when one moves or changes its meaning.
"""

from typing import Any

import keras

# Masks have no public setter.
from keras.src.backend.common import masking
import tensorflow as tf


class PlacedVariable(keras.Variable):
    """A variable that is created on a given device.

    Args:
        *args: As for `keras.Variable`.
        device: String. Name of the device.
        **kwargs: As for `keras.Variable`.
    """

    def __init__(self, *args: Any, device: str, **kwargs: Any) -> None:
        # Needed before the base class makes the value.
        self._placement = device
        super().__init__(*args, **kwargs)

    def _initialize(self, value: Any) -> None:
        # Inside of layers that Keras builds by a symbolic call, the value is
        # made when that call is over, under no device of ours; inside of a
        # `tf.function`, TensorFlow would make it in the graph.
        with tf.init_scope(), tf.device(self._placement):
            super()._initialize(value)


def remove_mask(tensor: Any) -> None:
    """Takes a Keras mask off a tensor."""
    masking.set_keras_mask(tensor, None)
