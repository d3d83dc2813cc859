"""The shapes that XLA compiles for."""

from typing import Any

import tensorflow as tf

Shapes = tuple[tuple[str, tuple[int | None, ...]], ...]


def shapes_of(batch: Any) -> Shapes:
    """Returns dtype and shape of each tensor that XLA gets of a batch.

    A ragged or sparse tensor consists of several, whose shapes change with the
    number of its values.

    Args:
        batch: Nest of tensors and `None`.
    """
    return tuple(
        (tensor.dtype.name, tuple(tensor.shape))
        for tensor in tf.nest.flatten(batch, expand_composites=True)
        if tensor is not None
    )


def is_shorter(shapes: Shapes, other: Shapes) -> bool:
    """Whether one batch differs from another by having fewer rows only."""
    if len(shapes) != len(other):
        return False
    fewer = False
    for (dtype, shape), (other_dtype, other_shape) in zip(
        shapes, other, strict=True
    ):
        if dtype != other_dtype or shape[1:] != other_shape[1:]:
            return False
        if shape[:1] != other_shape[:1]:
            if (shape[0] or 0) > (other_shape[0] or 0):
                return False
            fewer = True
    return fewer


def describe_shapes(shapes: Shapes) -> str:
    """Returns shapes as text, such as `float32[32, 8], int64[32]`."""
    return ", ".join(f"{dtype}{list(shape)}" for dtype, shape in shapes)
