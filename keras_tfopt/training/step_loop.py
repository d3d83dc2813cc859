"""Several steps in one loop, over batches that are held."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def repeat_step(
    run_one: Callable, batches: list[Any], count: tf.Tensor, logs: Any
) -> Any:
    """Runs a step for each of the first `count` batches, in a graph.

    Args:
        run_one: Callable that runs a step on a batch and returns its logs.
        batches: List of nests of tensors of one structure.
        count: Int32 scalar.
        logs: Nest of tensors, of the structure of what `run_one` returns.

    Returns:
        The logs of the last step.
    """
    arrays = [
        _array(parts)
        for parts in zip(
            *(_components(batch) for batch in batches), strict=True
        )
    ]

    def body(index: tf.Tensor, logs: Any) -> tuple:
        del logs
        parts = [
            None if array is None else array.read(index) for array in arrays
        ]
        batch = tf.nest.pack_sequence_as(
            batches[0], parts, expand_composites=True
        )
        return index + 1, run_one(batch)

    return tf.while_loop(
        lambda index, logs: index < count,
        body,
        (tf.constant(0), logs),
        parallel_iterations=1,
    )[1]


def _components(batch: Any) -> list[tf.Tensor | None]:
    return tf.nest.flatten(batch, expand_composites=True)


def _array(parts: tuple) -> tf.TensorArray | None:
    """Puts tensors of any shapes side by side, without copying them."""
    if parts[0] is None:
        return None
    array = tf.TensorArray(
        parts[0].dtype,
        size=len(parts),
        element_shape=parts[0].shape,
        infer_shape=False,
        clear_after_read=False,
    )
    for index, part in enumerate(parts):
        array = array.write(index, part)
    return array
