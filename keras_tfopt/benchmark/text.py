"""Python's own sources, and a transformer that continues them."""

from collections.abc import Callable
import math
import pathlib
import sysconfig
from typing import Any

import keras
import numpy as np
import tensorflow as tf

LENGTH = 64
# Sources are ASCII but for some names; the rest shares the last code.
CHARACTERS = 128
_WIDTH = 64
_HEADS = 4


def load_sources(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts the sources of the standard library into lines of 64 characters.

    Nothing is downloaded.

    Example:

    ```python
    from keras_tfopt.benchmark.text import load_sources

    texts, following = load_sources(100)
    assert texts.shape == (100,)
    assert following.shape == (100, 64)
    assert chr(following[0, 0]) == chr(texts[0][1])
    ```

    Args:
        rows: Integer. Number of lines.

    Returns:
        Array of bytes, and the character that follows each of theirs as
        integers.

    Raises:
        FileNotFoundError: If Python came without that many sources.
    """
    wanted = rows * LENGTH + 1
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    text = b""
    for path in sorted(library.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= wanted:
            break
    else:
        raise FileNotFoundError(
            f"{library} holds {len(text)} characters of sources, and {wanted} "
            "are needed."
        )
    codes = np.frombuffer(text[:wanted], np.uint8)
    following = np.minimum(codes[1:], CHARACTERS - 1).astype("int32")
    lines = [
        text[start : start + LENGTH] for start in range(0, wanted - 1, LENGTH)
    ]
    return np.array(lines, object), following.reshape(rows, LENGTH)


def bits_without_context(following: np.ndarray) -> float:
    """Returns the bits per character of who knows their frequencies alone.

    Args:
        following: Array of integers.
    """
    counts = np.bincount(following.ravel())
    shares = counts[counts > 0] / following.size
    return float(-(shares * np.log2(shares)).sum())


def to_bits(loss: float) -> float:
    """Returns a mean crossentropy in bits per character."""
    return loss / math.log(2)


@keras.saving.register_keras_serializable("keras_tfopt")
class CharacterEmbedding(keras.layers.Layer):
    """Turns texts of one length into vectors of characters and places.

    Texts are strings, which XLA does not know.

    Args:
        width: Integer. Entries of a vector.
        **kwargs: As for `keras.layers.Layer`.
    """

    def __init__(self, width: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.width = width
        self._characters = keras.layers.Embedding(CHARACTERS, width)
        self._places = keras.layers.Embedding(LENGTH, width)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Looks characters and places up."""
        codes = tf.io.decode_raw(inputs, tf.uint8, fixed_length=LENGTH)
        codes = tf.minimum(tf.cast(codes, tf.int32), CHARACTERS - 1)
        return self._characters(codes) + self._places(tf.range(LENGTH))

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        """Returns the shape of the vectors."""
        return (*input_shape, LENGTH, self.width)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments."""
        return {**super().get_config(), "width": self.width}


def build_transformer(
    model_class: Callable[..., keras.Model] = keras.Model, **options: Any
) -> keras.Model:
    """Builds and compiles a transformer of one block for `load_sources`.

    Args:
        model_class: Callable that makes a model of `inputs` and `outputs`.
            Defaults to `keras.Model`.
        **options: Passed on to `model_class`.

    Returns:
        What `model_class` makes, compiled.
    """
    layers = keras.layers
    inputs = keras.Input((), dtype="string")
    x = CharacterEmbedding(_WIDTH)(inputs)
    normalized = layers.LayerNormalization()(x)
    attention = layers.MultiHeadAttention(_HEADS, _WIDTH // _HEADS)
    x = x + attention(normalized, normalized, use_causal_mask=True)
    hidden = layers.Dense(4 * _WIDTH, activation="gelu")(
        layers.LayerNormalization()(x)
    )
    x = x + layers.Dropout(0.1)(layers.Dense(_WIDTH)(hidden))
    outputs = layers.Dense(CHARACTERS)(layers.LayerNormalization()(x))
    model = model_class(inputs, outputs, **options)
    model.compile(
        keras.optimizers.Adam(3e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model
