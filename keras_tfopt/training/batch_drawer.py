"""Drawing the batches of one call, in one call."""

from collections.abc import Callable
from collections.abc import Iterator
import functools
import time
from typing import Any

import tensorflow as tf

from keras_tfopt.distribution.agreement import lost_workers
from keras_tfopt.training.batch import to_tensors


class BatchDrawer:
    """Draws several batches from an iterator without a call for each.

    To draw a batch takes Python as long as a small step. What
    `steps_per_execution` saves would be spent here.

    Args:
        convert: Callable that makes tensors of what an iterator delivers.

    Attributes:
        seconds: Float. Time that drawing took so far: the wait for data.
    """

    def __init__(self, convert: Callable[[Any], Any] = to_tensors) -> None:
        self._convert = convert
        self._draw_many = tf.function(
            _draw_many, autograph=False, reduce_retracing=True
        )
        self.seconds = 0.0

    def __call__(self, iterator: Iterator, count: int) -> list[Any]:
        """Draws batches for one call of a step function.

        Args:
            iterator: Iterator of batches.
            count: Integer. Most batches to draw.

        Returns:
            List of at least one nest of tensors.

        Raises:
            StopIteration: If there is none.
        """
        start = time.perf_counter()
        try:
            return self._draw(iterator, count)
        finally:
            self.seconds += time.perf_counter() - start

    def _draw(self, iterator: Iterator, count: int) -> list[Any]:
        if not isinstance(iterator, tf.data.Iterator) or count == 1:
            return self._draw_each(iterator, count)
        if not _is_dense(iterator.element_spec):
            return self._draw_each(iterator, count)
        batches, drawn = self._draw_many(iterator, count)
        drawn = int(drawn)
        if not drawn:
            raise StopIteration
        return batches[:drawn]

    def _draw_each(self, iterator: Iterator, count: int) -> list[Any]:
        batches: list[Any] = []
        try:
            while len(batches) < count:
                # Workers ask each other whether any has a batch left.
                with lost_workers():
                    batches.append(self._convert(next(iterator)))
        except (StopIteration, tf.errors.OutOfRangeError):
            if not batches:
                raise StopIteration from None
        return batches


def _draw_many(iterator: Any, count: int) -> tuple[list[Any], tf.Tensor]:
    """Returns batches and how many are real; the rest are empty."""
    batches = []
    flags = []
    for _ in range(count):
        optional = iterator.get_next_as_optional()
        flags.append(optional.has_value())
        batches.append(
            tf.cond(
                flags[-1],
                optional.get_value,
                functools.partial(_empty, iterator.element_spec),
            )
        )
    return batches, tf.add_n([tf.cast(flag, tf.int32) for flag in flags])


def _empty(spec: Any) -> Any:
    return tf.nest.map_structure(
        lambda leaf: tf.zeros([size or 0 for size in leaf.shape], leaf.dtype),
        spec,
    )


def _is_dense(spec: Any) -> bool:
    """Whether all parts of a batch are plain tensors of known rank."""
    return all(
        isinstance(leaf, tf.TensorSpec) and leaf.shape.rank is not None
        for leaf in tf.nest.flatten(spec)
    )
