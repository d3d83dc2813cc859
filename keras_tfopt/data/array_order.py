"""Shuffling of arrays that depends on a seed and nothing else."""

import dataclasses
import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayOrder:
    """Shuffles arrays anew for each iterator, by its number.

    Stands in for the shuffling of Keras where no seed is set, and what it draws
    could not be drawn again.

    Attributes:
        arrays: Nest of NumPy arrays, tensors and `None`.
        rows: Integer. Rows of the arrays.
        batch_size: Integer.
        seed: Integer.
    """

    arrays: Any
    rows: int
    batch_size: int
    seed: int

    @staticmethod
    def takes(arrays: Any) -> bool:
        """Whether arrays are dense, as all must be."""
        return all(
            leaf is None or isinstance(leaf, (np.ndarray, tf.Tensor))
            for leaf in keras.tree.flatten(arrays)
        )

    def dataset(self, number: int) -> tf.data.Dataset:
        """Returns the batches of one pass over the arrays.

        Args:
            number: Integer. Which pass it is.
        """
        order = tf.random.experimental.stateless_shuffle(
            tf.range(self.rows, dtype=tf.int64), seed=[self.seed, number]
        )
        rows = tf.data.Dataset.from_tensor_slices(order).batch(self.batch_size)
        tensors = self._tensors
        return rows.map(
            lambda index: keras.tree.map_structure(
                lambda leaf: None if leaf is None else tf.gather(leaf, index),
                tensors,
            ),
            num_parallel_calls=tf.data.AUTOTUNE,
        ).prefetch(tf.data.AUTOTUNE)

    @functools.cached_property
    def _tensors(self) -> Any:
        # `tf.data` takes a list for one tensor.
        arrays = keras.tree.lists_to_tuples(self.arrays)
        return keras.tree.map_structure(
            lambda leaf: None if leaf is None else tf.convert_to_tensor(leaf),
            arrays,
        )
