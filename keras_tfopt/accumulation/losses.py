"""The compiled loss of a micro-batch, in parts that add up exactly.

Keras divides the loss of each output by what its reduction counts: elements,
valid tokens, sample weights. Micro-batches have other counts than the batch, so
that neither the mean nor the row-weighted mean of their losses is the loss of
the batch. With S the sum of an output's loss values and D what Keras divides by,
the loss of the batch is (sum of S) / (sum of D).
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt import _compat


class MicrobatchLoss:
    """Computes compiled losses so that row-weighted micro-batches add up.

    The value of an output's loss is S_j / D / w_j for micro-batch j with the
    share w_j of the rows. The caller weights the total with w_j: the parts then
    add up to the loss of the batch, while everything else in the total (a
    regularizer, `add_loss`, terms of an overridden `compute_loss`) is averaged
    over rows.

    A loss that returns one number for its batch has no S and D. It is averaged
    over rows.

    Args:
        loss: The compiled loss of a model, built.
        denominators: Float32 vector. D of each loss over the whole batch, in
            the order of their evaluation.
        row_weight: Float32 scalar. Share of the micro-batch in the rows.
        tracker_weight: Float. Weight of a batch in the per-output trackers.
    """

    def __init__(
        self,
        loss: keras.losses.Loss,
        denominators: tf.Tensor,
        row_weight: tf.Tensor,
        tracker_weight: float,
    ) -> None:
        self._row_weight = row_weight
        self._denominators = denominators
        self._local: list[tf.Tensor] = []
        self.loss = _compat.clone_loss(loss)
        weight = tracker_weight * row_weight
        _compat.replace_flat_losses(
            self.loss,
            [self._term(entry.loss) for entry in _compat.flat_losses(loss)],
            [_WeightedTracker(metric, weight) for metric in loss.metrics],
        )

    @property
    def local_denominators(self) -> tf.Tensor:
        """D of each loss over this micro-batch, as a float32 vector."""
        return tf.stack(self._local) if self._local else tf.zeros((0,))

    def _term(self, loss: Any) -> Callable[..., tf.Tensor]:
        def value(y_true: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
            parts = split_loss(loss, y_true, y_pred, sample_weight)
            if parts is None:
                return loss(y_true, y_pred, sample_weight)
            numerator, denominator = parts
            total = self._denominators[len(self._local)]
            self._local.append(denominator)
            mean = _reduce(numerator, total, loss.reduction)
            return mean / tf.cast(self._row_weight, mean.dtype)

        return value


class _WeightedTracker:
    """Feeds a per-output loss tracker with the share of a micro-batch."""

    def __init__(self, metric: keras.metrics.Metric, weight: Any) -> None:
        self._metric = metric
        self._weight = weight

    def update_state(self, value: Any, sample_weight: Any = None) -> None:
        del sample_weight  # The static batch size, which a micro-batch lacks.
        self._metric.update_state(value, sample_weight=self._weight)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metric, name)


def split_loss(
    loss: Any, y_true: Any, y_pred: Any, sample_weight: Any
) -> tuple[tf.Tensor, tf.Tensor] | None:
    """Returns numerator and denominator of a loss, or `None` if it has none.

    Args:
        loss: A Keras loss.
        y_true: Targets.
        y_pred: Predictions; a Keras mask on them counts.
        sample_weight: Weights or `None`.

    Returns:
        Float scalars `(S, D)`, or `None` for a loss that gives one number for
        a batch and so cannot be split.
    """
    if type(loss).__call__ is not keras.losses.Loss.__call__:
        return None
    recorded: list[tf.Tensor] = []

    def call(y_true: Any, y_pred: Any) -> tf.Tensor:
        recorded.append(loss.call(y_true, y_pred))
        return recorded[-1]

    weighted = _apply(loss, call, y_true, y_pred, sample_weight)
    values = recorded[0]
    if values.shape.rank == 0:
        return None
    is_weight_sum = (
        loss.reduction == "mean_with_sample_weight"
        and sample_weight is not None
    )

    def ones(y_true: Any, y_pred: Any) -> tf.Tensor:
        # Keras sums the weights as they are given, not broadcast to the values.
        shape = [1] * values.shape.rank if is_weight_sum else tf.shape(values)
        result = tf.ones(shape, values.dtype)
        _compat.set_mask(result, _compat.get_mask(values))
        return result

    weight = sample_weight if is_weight_sum else None
    counted = _apply(loss, ones, y_true, y_pred, weight)
    return (
        tf.reduce_sum(weighted),
        tf.stop_gradient(tf.reduce_sum(tf.cast(counted, tf.float32))),
    )


@contextlib.contextmanager
def replaced_compile_loss(
    model: keras.Model, loss: keras.losses.Loss
) -> Iterator[None]:
    """Lets a model compute its loss with another compiled loss."""
    original = _compat.compile_loss(model)
    _compat.set_compile_loss(model, loss)
    try:
        yield
    finally:
        _compat.set_compile_loss(model, original)


def _reduce(numerator: tf.Tensor, total: tf.Tensor, reduction: Any) -> Any:
    if reduction == "sum":
        return numerator
    mean = tf.math.divide_no_nan(numerator, tf.cast(total, numerator.dtype))
    if reduction in (None, "none"):
        # Keras differentiates the sum of the values but tracks their mean.
        slope = numerator - tf.stop_gradient(numerator)
        mean = slope + tf.stop_gradient(mean)
    return mean


def _apply(
    loss: Any, call: Callable, y_true: Any, y_pred: Any, sample_weight: Any
) -> tf.Tensor:
    """Lets Keras weight and mask the values of `call`, unreduced."""
    clone = _compat.clone_loss(loss)
    clone.reduction = "none"
    vars(clone)["call"] = call
    return clone(y_true, y_pred, sample_weight)
