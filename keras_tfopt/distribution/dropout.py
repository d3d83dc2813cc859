"""Dropout whose masks do not depend on how a batch is divided."""

import random
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt.rows import RowPosition
from keras_tfopt.rows import current_rows

# What Philox makes of one value of its counter.
_NUMBERS_PER_COUNT = 4
_PHILOX = 1


@keras.saving.register_keras_serializable(package="keras_tfopt")
class PerExampleDropout(keras.layers.Layer):
    """Dropout with a mask of its own for each example of a batch.

    `keras.layers.Dropout` draws one mask for whatever rows it is given: the
    result of training depends on the number of micro-batches and of replicas,
    and all replicas of stock Keras draw the same mask. Here an example's mask
    depends on the seed, the step and the example's index in the whole batch
    only, so that one device, several, and any micro-batches train the same
    weights. Under XLA it draws other numbers than without.

    In steps of Keras' own it counts its calls in place of steps, which is the
    same on one device.

    Example:

    ```python
    import keras
    from keras_tfopt import AccumModel
    from keras_tfopt import distribution

    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(16, activation="relu")(inputs)
    hidden = distribution.PerExampleDropout(0.5, seed=1)(hidden)
    outputs = keras.layers.Dense(1)(hidden)
    model = AccumModel(inputs, outputs, microbatch_size=4)
    ```

    Args:
        rate: Float in [0, 1). Share of the values to drop; the others are
            scaled up by `1 / (1 - rate)`.
        seed: Integer or `None`. Two layers of the same seed and shape draw the
            same masks. Defaults to `None`, which draws a seed.
        **kwargs: As for `keras.layers.Layer`.

    Raises:
        ValueError: If `rate` is not in [0, 1), or `seed` not in [0, 2**32).

    Reference:
        Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011,
        https://doi.org/10.1145/2063384.2063405
    """

    def __init__(
        self, rate: float, seed: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if not 0 <= rate < 1:
            raise ValueError(
                f"Invalid value for argument `rate`. Received: rate={rate!r}. "
                "Expected: a number of at least 0 and below 1."
            )
        if seed is None:
            # By Python's generator, which Keras seeds.
            seed = random.randrange(2**32)
        if not isinstance(seed, int) or not 0 <= seed < 2**32:
            raise ValueError(
                f"Invalid value for argument `seed`. Received: seed={seed!r}. "
                "Expected: an integer from 0 to 2**32 - 1, or None."
            )
        self.rate = rate
        self.seed = seed
        self.supports_masking = True
        # Counts the calls where nobody tells the step.
        self._calls = keras.random.SeedGenerator(seed)
        self.built = True

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> Any:
        """Drops values in training."""
        if not training or self.rate == 0:
            return inputs
        position = current_rows()
        if position is None:
            position = RowPosition(self._calls.next()[1], 0)
        kept = self._uniform(tf.shape(inputs), position) >= self.rate
        scale = tf.cast(1 / (1 - self.rate), inputs.dtype)
        return tf.where(kept, inputs * scale, tf.zeros_like(inputs))

    def _uniform(self, shape: tf.Tensor, position: RowPosition) -> tf.Tensor:
        """Returns numbers in [0, 1), those of a row wherever it stands."""
        width = tf.reduce_prod(shape[1:])
        # A row begins with a count of its own.
        counts = -(-width // _NUMBERS_PER_COUNT)
        first = tf.cast(position.first_row, tf.int64) * tf.cast(
            counts, tf.int64
        )
        step = tf.cast(tf.convert_to_tensor(position.step), tf.uint64)
        key = self.seed * 2**32 + step
        numbers = tf.raw_ops.StatelessRandomUniformV2(
            shape=tf.stack([shape[0], counts * _NUMBERS_PER_COUNT]),
            key=tf.reshape(key, [1]),
            counter=tf.stack(
                [tf.cast(first, tf.uint64), tf.zeros((), tf.uint64)]
            ),
            alg=_PHILOX,
        )
        return tf.reshape(numbers[:, :width], shape)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        """Returns the shape of the inputs."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Returns the config, with the seed that was drawn."""
        config = {"rate": self.rate, "seed": self.seed}
        return {**super().get_config(), **config}
