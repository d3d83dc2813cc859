"""Moving statistics of BatchNormalization over a split batch.

Each micro-batch is normalized with its own moments, but the moving statistics
are updated once, with the moments of the whole batch. Averaging the variances
of micro-batches would be biased low by the variance between their means.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
from typing import Any
from typing import NamedTuple

import keras
import tensorflow as tf

from keras_tfopt import _compat


class Moments(NamedTuple):
    """Moments of a set of values, per channel.

    Attributes:
        count: Float32 scalar. Number of values per channel.
        mean: Tensor of shape `(channels,)`.
        squares: Tensor of shape `(channels,)`. Sum of squared deviations from
            the mean.
    """

    count: tf.Tensor
    mean: tf.Tensor
    squares: tf.Tensor


def empty_moments(like: Moments) -> Moments:
    """Returns the moments of no values."""
    return Moments(*(tf.zeros(part.shape, part.dtype) for part in like))


def merge_moments(first: Moments, second: Moments) -> Moments:
    """Returns the moments of the union of two sets.

    Unlike differences of sums of squares, this loses no digits when the mean is
    large against the deviation.

    Reference:
        Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for
        Computing Sample Variances", 1979,
        http://i.stanford.edu/pub/cstr/reports/cs/tr/79/773/CS-TR-79-773.pdf
    """
    count = first.count + second.count
    share = tf.math.divide_no_nan(second.count, count)
    delta = second.mean - first.mean
    return Moments(
        count,
        first.mean + delta * tf.cast(share, delta.dtype),
        first.squares
        + second.squares
        + tf.square(delta) * tf.cast(first.count * share, delta.dtype),
    )


def merge_all_moments(
    first: list[list[Moments]], second: list[list[Moments]]
) -> list[list[Moments]]:
    """Merges the moments of each call of each layer."""
    return [
        [merge_moments(a, b) for a, b in zip(*calls, strict=True)]
        for calls in zip(first, second, strict=True)
    ]


def is_mergeable(layer: keras.layers.Layer) -> bool:
    """Whether a layer's moving statistics can be merged over micro-batches.

    Batch renormalization normalizes with its moving statistics, and a subclass
    may do anything: their updates depend on more than the moments.
    """
    return (
        isinstance(layer, keras.layers.BatchNormalization)
        and type(layer).call is keras.layers.BatchNormalization.call
        and _compat.has_stock_moments(layer)
        and not getattr(layer, "renorm", False)
    )


@contextlib.contextmanager
def captured_moments(
    layers: list[keras.layers.BatchNormalization],
) -> Iterator[list[list[Moments]]]:
    """Collects the batch moments that layers compute.

    Args:
        layers: List of mergeable layers.

    Yields:
        List with one list per layer, of the `Moments` of each of its calls:
        a shared layer is called more than once in a forward pass.
    """
    captured: list[list[Moments]] = [[] for _ in layers]
    for layer, calls in zip(layers, captured, strict=True):
        _compat.set_batch_moments(layer, _recorder(layer, calls))
    try:
        yield captured
    finally:
        for layer in layers:
            _compat.set_batch_moments(layer, None)


def updated_statistics(
    layer: keras.layers.BatchNormalization, calls: list[Moments]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the moving mean and variance after a step.

    Args:
        layer: The layer, before the step.
        calls: `Moments` of the whole batch, one for each call of the layer.

    Returns:
        Tuple `(moving_mean, moving_variance)`.
    """
    mean = layer.moving_mean.value
    variance = layer.moving_variance.value
    for moments in calls:
        batch_variance = tf.math.divide_no_nan(
            moments.squares, tf.cast(moments.count, moments.squares.dtype)
        )
        mean = _blend(mean, moments.mean, layer.momentum)
        variance = _blend(variance, batch_variance, layer.momentum)
    return mean, variance


def _blend(old: tf.Tensor, new: tf.Tensor, momentum: float) -> tf.Tensor:
    return old * momentum + tf.cast(new, old.dtype) * (1.0 - momentum)


def _recorder(
    layer: keras.layers.BatchNormalization, calls: list[Moments]
) -> Callable:
    moments = _compat.batch_moments(layer)

    def record(inputs: Any, mask: Any) -> tuple[tf.Tensor, tf.Tensor]:
        mean, variance = moments(inputs, mask)
        if mask is None:
            size = tf.size(inputs, out_type=tf.int32)
            count = tf.cast(size // inputs.shape[layer.axis], tf.float32)
        else:
            spread = tf.broadcast_to(mask, tf.shape(inputs)[:-1])
            count = tf.reduce_sum(tf.cast(spread, tf.float32))
        squares = variance * tf.cast(count, variance.dtype)
        calls.append(Moments(count, mean, squares))
        return mean, variance

    return record
