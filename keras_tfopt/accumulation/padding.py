"""Rows that stand in a batch only to give it a size that is known."""

import dataclasses
from typing import Any

import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.accumulation.split import is_per_row


class PaddingError(ValueError):
    """Rows of padding would change what a model learns or reports."""


class UndecidedPaddingError(PaddingError):
    """A batch does not tell whether they would."""


@dataclasses.dataclass(frozen=True)
class RealRows:
    """Which rows of a padded batch are real: the first ones.

    Attributes:
        count: Int32 scalar. How many.
        size: Integer. Rows with the padding.
    """

    count: tf.Tensor
    size: int

    def are_in(self, values: tf.Tensor) -> bool:
        """Whether a tensor has a row for each row of the batch."""
        return bool(values.shape.rank) and values.shape[0] == self.size

    def keep(self, values: tf.Tensor) -> tf.Tensor:
        """Returns values with zeros in the rows of padding.

        To select is not to multiply: what is not finite does not come through.
        """
        is_real = tf.range(self.size) < self.count
        shape = [self.size] + [1] * (values.shape.rank - 1)
        return tf.where(
            tf.reshape(is_real, shape), values, tf.zeros_like(values)
        )


def pad_rows(
    batch: Any, rows: tf.Tensor, size: int, filler: tf.Tensor | None = None
) -> Any:
    """Returns a batch with more rows, which repeat one of its own.

    A row of the batch's own is sound input for any layer, as zeros may not be.

    Args:
        batch: Nest of dense tensors and `None`.
        rows: Int32 scalar. Its rows.
        size: Integer. Rows to return, at least as many.
        filler: Int32 scalar. Which row to repeat. Defaults to the last one.

    Returns:
        A nest of the same structure. Scalars and `None` are passed through.
    """
    filler = rows - 1 if filler is None else filler
    index = tf.range(size)
    index = tf.where(index < rows, index, filler)
    return tf.nest.map_structure(
        lambda leaf: tf.gather(leaf, index) if is_per_row(leaf) else leaf,
        batch,
    )


def masks_of(nest: Any) -> Any:
    """Returns the Keras masks that ride on tensors, with `None` for none."""
    return tf.nest.map_structure(_compat.get_mask, nest)


def without_padding(nest: Any, masks: Any, real: RealRows) -> Any:
    """Returns what a model made of a padded batch, for its real rows.

    Args:
        nest: Nest of tensors. Those without a row for each row of the batch are
            passed through.
        masks: Nest of their Keras masks, as of `masks_of`, to put back.
        real: `RealRows`.
    """

    def take(tensor: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
        taken = tf.identity(_take(tensor, real))
        _compat.set_mask(taken, None if mask is None else _take(mask, real))
        return taken

    flat = [
        take(tensor, mask)
        for tensor, mask in zip(
            tf.nest.flatten(nest), tf.nest.flatten(masks), strict=True
        )
    ]
    return tf.nest.pack_sequence_as(nest, flat)


def _take(tensor: tf.Tensor, real: RealRows) -> tf.Tensor:
    return tensor[: real.count] if real.are_in(tensor) else tensor
