"""A nest whose tensors are one flat list."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt import _compat


@dataclasses.dataclass(frozen=True)
class FlatNest:
    """A nest whose tensors, and the masks on them, are one flat list.

    Attributes:
        structure: Nest. As given.
        leaves: List. Its leaves, those that are no tensors included.
        masked: Indices of the leaves that carry a mask of Keras.
        tensors: List of the tensors in order, followed by the masks.
    """

    structure: Any
    leaves: list[Any]
    masked: list[int]
    tensors: list[tf.Tensor]

    @classmethod
    def of(cls, nest: Any) -> "FlatNest":
        """Flattens a nest."""
        leaves = tf.nest.flatten(nest, expand_composites=True)
        tensors = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]
        masked = [
            index
            for index, leaf in enumerate(leaves)
            if isinstance(_compat.get_mask(leaf), tf.Tensor)
        ]
        masks = [_compat.get_mask(leaves[index]) for index in masked]
        return cls(nest, leaves, masked, tensors + masks)

    @property
    def is_symbolic(self) -> bool:
        """Whether Keras is building a model."""
        return any(isinstance(leaf, keras.KerasTensor) for leaf in self.leaves)

    def with_tensors(self, tensors: list[tf.Tensor]) -> "FlatNest":
        """Returns the same nest with other tensors and masks."""
        waiting = iter(tensors)
        leaves = [
            next(waiting) if isinstance(leaf, tf.Tensor) else leaf
            for leaf in self.leaves
        ]
        for index in self.masked:
            _compat.set_mask(leaves[index], next(waiting))
        nest = tf.nest.pack_sequence_as(
            self.structure, leaves, expand_composites=True
        )
        return FlatNest(nest, leaves, self.masked, tensors)

    @property
    def nest(self) -> Any:
        """The nest."""
        return self.structure
