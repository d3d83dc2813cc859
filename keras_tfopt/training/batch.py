"""What a data iterator delivers, as tensors and as specs."""

from typing import Any

import numpy as np
import tensorflow as tf


def to_tensors(batch: Any) -> Any:
    """Returns a delivered batch as tensors and `None`.

    Keras delivers `tf.experimental.Optional` for what was not given, and NumPy
    arrays to `train_on_batch`.
    """
    return tf.nest.map_structure(_to_tensor, batch)


def without_optionals(spec: Any) -> Any:
    """Returns the spec of an iterator's batches after `to_tensors`."""
    return tf.nest.map_structure(
        lambda leaf: None if _is_none_spec(leaf) else leaf, spec
    )


def spec_of(batch: Any) -> Any:
    """Returns the spec of a batch of tensors, with its shapes."""
    return tf.nest.map_structure(
        lambda leaf: None if leaf is None else tf.type_spec_from_value(leaf),
        batch,
    )


def relax_rows(spec: Any) -> Any:
    """Returns a spec that any number of rows fits."""
    return tf.nest.map_structure(_relax_leaf, spec)


def fix_rows(spec: Any, rows: int) -> Any:
    """Returns the spec of batches of so many rows.

    Args:
        spec: Nest of specs; those of ragged and sparse tensors stay as they
            are.
        rows: Integer.
    """
    return tf.nest.map_structure(
        lambda leaf: (
            tf.TensorSpec([rows, *leaf.shape[1:]], leaf.dtype)
            if isinstance(leaf, tf.TensorSpec) and leaf.shape.rank
            else leaf
        ),
        spec,
    )


def static_rows(spec: Any) -> int | None:
    """Returns the number of rows that a spec fixes, or `None`."""
    for leaf in tf.nest.flatten(spec):
        if leaf is not None and leaf.shape.rank:
            return leaf.shape[0]
    return None


def _to_tensor(leaf: Any) -> Any:
    if leaf is None or isinstance(leaf, tf.experimental.Optional):
        return None
    if isinstance(leaf, (np.ndarray, np.generic, int, float)):
        return tf.convert_to_tensor(leaf)
    return leaf


def _is_none_spec(leaf: Any) -> bool:
    # The spec of `None` itself has no public name and, unlike others, no shape.
    return isinstance(leaf, tf.OptionalSpec) or not hasattr(leaf, "shape")


def _relax_leaf(spec: Any) -> Any:
    if spec is None or not spec.shape.rank:
        return spec
    shape = [None, *spec.shape[1:]]
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(
            shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype
        )
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensorSpec(shape, spec.dtype)
    return tf.TensorSpec(shape, spec.dtype)
