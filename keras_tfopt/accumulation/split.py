"""Splitting a batch, whatever its structure, along its rows."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Run:
    """Micro-batches of one static size, as XLA needs them.

    Attributes:
        offset: First row of the first one.
        count: How many.
        size: Their rows.
    """

    offset: int
    count: int
    size: int

    def bounds(self, index: tf.Tensor) -> tuple[tf.Tensor, int]:
        """Returns the first row and the number of rows of a micro-batch."""
        return self.offset + index * self.size, self.size


@dataclasses.dataclass(frozen=True)
class Partition:
    """Row counts of the micro-batches: two runs of equal sizes.

    The fields are integers, or integer tensors where the number of rows is
    only known when the step runs.

    Attributes:
        first_count: Number of micro-batches of `first_size` rows.
        first_size: Their rows.
        second_count: Number of micro-batches that follow.
        second_size: Their rows.
    """

    first_count: Any
    first_size: Any
    second_count: Any
    second_size: Any

    @property
    def count(self) -> Any:
        """Number of micro-batches."""
        return self.first_count + self.second_count

    def bounds(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the first row and the number of rows of a micro-batch."""
        after_first = tf.maximum(index - self.first_count, 0)
        start = (
            tf.minimum(index, self.first_count) * self.first_size
            + after_first * self.second_size
        )
        is_first = index < self.first_count
        return start, tf.where(is_first, self.first_size, self.second_size)

    def runs(self) -> "list[Run | Partition]":
        """Returns what to loop over, one loop each."""
        if not isinstance(self.first_count, int):
            return [self]
        first = Run(0, self.first_count, self.first_size)
        rows = self.first_count * self.first_size
        second = Run(rows, self.second_count, self.second_size)
        return [run for run in (first, second) if run.count]


def partition_by_size(rows: Any, microbatch_size: Any) -> Partition:
    """Partitions rows into micro-batches of one size and a rest."""
    full = rows // microbatch_size
    rest = rows - full * microbatch_size
    has_rest = (rest + microbatch_size - 1) // microbatch_size
    return Partition(full, microbatch_size, has_rest, rest)


def partition_by_count(rows: Any, accumulation_steps: Any) -> Partition:
    """Partitions rows into micro-batches that differ by at most one row.

    A batch with fewer rows than `accumulation_steps` makes one micro-batch per
    row, and a batch without rows none.
    """
    if isinstance(rows, int) and isinstance(accumulation_steps, int):
        count = min(accumulation_steps, rows)
        size = rows // max(count, 1)
    else:
        count = tf.minimum(accumulation_steps, rows)
        size = rows // tf.maximum(count, 1)
    larger = rows - size * count
    return Partition(larger, size + 1, count - larger, size)


def is_per_row(leaf: Any) -> bool:
    """Whether a leaf of a batch has a row per example.

    Scalars, and `None` for what was not given, belong to every micro-batch.
    """
    return leaf is not None and leaf.shape.rank != 0


def count_rows(batch: Any) -> tf.Tensor:
    """Returns the number of rows of a batch as an int32 scalar.

    Raises:
        ValueError: If no leaf of the batch has rows.
    """
    for leaf in tf.nest.flatten(batch):
        if is_per_row(leaf):
            return tf.cast(_leaf_rows(leaf), tf.int32)
    raise _no_rows_error(batch)


def check_rows(batch: Any) -> None:
    """Raises if a batch has no rows, or if its leaves disagree about them.

    Raises:
        ValueError: Names each leaf and its rows.
    """
    if not any(map(is_per_row, tf.nest.flatten(batch))):
        raise _no_rows_error(batch)
    rows = {}
    for path, leaf in keras.tree.flatten_with_path(batch):
        if is_per_row(leaf) and leaf.shape[0] is not None:
            rows[_describe_path(path)] = int(leaf.shape[0])
    if len(set(rows.values())) > 1:
        listing = ", ".join(f"{path}: {count}" for path, count in rows.items())
        raise ValueError(
            "A batch cannot be split whose leading dimensions disagree. "
            f"Received: {listing}. Expected: the same number of rows "
            "everywhere, or scalars for what belongs to the whole batch."
        )


def take_rows(batch: Any, start: Any, size: Any) -> Any:
    """Returns rows `start` to `start + size` of a batch.

    Args:
        batch: Nest of tensors, ragged tensors, sparse tensors and `None`.
        start: Integer or int32 scalar.
        size: Integer or int32 scalar. An integer gives the result a static
            number of rows, which XLA needs.

    Returns:
        A nest of the same structure. Scalars and `None` are passed through.
    """
    return tf.nest.map_structure(
        lambda leaf: _take_leaf(leaf, start, size), batch
    )


def _take_leaf(leaf: Any, start: Any, size: Any) -> Any:
    if not is_per_row(leaf):
        return leaf
    if isinstance(leaf, tf.SparseTensor):
        inner = leaf.dense_shape[1:]
        rows = tf.sparse.slice(
            leaf,
            tf.concat([[tf.cast(start, tf.int64)], tf.zeros_like(inner)], 0),
            tf.concat([[tf.cast(size, tf.int64)], inner], 0),
        )
        rows.set_shape(_sliced_shape(leaf, size))
        return rows
    if isinstance(leaf, tf.RaggedTensor) or leaf.shape.rank is None:
        return leaf[start : start + size]
    inner_rank = leaf.shape.rank - 1
    rows = tf.slice(
        leaf, [start] + [0] * inner_rank, [size] + [-1] * inner_rank
    )
    # A size that is a tensor hides the other dimensions, which layers need.
    rows.set_shape(_sliced_shape(leaf, size))
    return rows


def _sliced_shape(leaf: Any, size: Any) -> list[int | None]:
    return [size if isinstance(size, int) else None, *leaf.shape[1:]]


def _leaf_rows(leaf: Any) -> tf.Tensor:
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.nrows()
    if isinstance(leaf, tf.SparseTensor):
        return leaf.dense_shape[0]
    return tf.shape(leaf)[0]


def _no_rows_error(batch: Any) -> ValueError:
    return ValueError(
        "A batch cannot be split that has no rows. Received: "
        f"{keras.tree.map_structure(_describe, batch)}. Expected: at least one "
        "tensor with a leading batch dimension. Train without "
        "`accumulation_steps`, `microbatch_size` and `gather_steps`, or "
        "deliver batches with rows."
    )


def _describe(leaf: Any) -> str:
    return "None" if leaf is None else f"shape {leaf.shape}"


def _describe_path(path: tuple) -> str:
    names = ("x", "y", "sample_weight")
    if not path:
        return "x"
    if isinstance(path[0], str):
        # A dict alone is `x`.
        path = (0, *path)
    return names[path[0]] + "".join(f"[{key!r}]" for key in path[1:])
