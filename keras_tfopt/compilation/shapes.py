"""The shapes that XLA compiles for."""

from collections.abc import Iterable
from collections.abc import Sequence
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


def with_rows(shapes: Shapes, rows: int) -> Shapes:
    """Returns the shapes of a batch padded to a number of rows.

    Args:
        shapes: `Shapes`; scalars stay as they are.
        rows: Integer.
    """
    return tuple(
        (dtype, (rows, *shape[1:]) if shape else shape)
        for dtype, shape in shapes
    )


def rows_of(shapes: Shapes) -> int | None:
    """Returns the number of rows that all of a batch has, or `None`."""
    rows = {shape[0] for _, shape in shapes if shape}
    return rows.pop() if len(rows) == 1 else None


def padded_rows(
    rows: int,
    shapes: Shapes,
    known: Iterable[Shapes],
    buckets: Sequence[int] | None,
) -> int:
    """Returns how many rows to pad a micro-batch to.

    Args:
        rows: Integer. Rows of the micro-batch.
        shapes: `Shapes` of its batch.
        known: Shapes that were compiled for.
        buckets: The sizes to choose from, or `None` to choose from those that
            were compiled for.

    Returns:
        Integer. The smallest that is large enough, and `rows` if none is.
    """
    if buckets is None:
        buckets = [
            size
            for other in known
            if (size := rows_of(other)) and with_rows(shapes, size) == other
        ]
    return min((size for size in buckets if size >= rows), default=rows)


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
