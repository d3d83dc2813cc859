"""The compiled loss of a micro-batch, in parts that add up exactly.

Keras divides the loss of each output by what its reduction counts: elements,
valid tokens, sample weights. Micro-batches have other counts than the batch, so
that neither the mean nor the row-weighted mean of their losses is the loss of
the batch. With S the sum of an output's loss values and D what Keras divides
by, the loss of the batch is (sum of S) / (sum of D).
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
from typing import Any
from typing import NamedTuple

import keras
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.accumulation.padding import RealRows


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
        rows: Int32 scalar. Rows of the micro-batch.
        row_weight: Float32 scalar. Share of the micro-batch in the rows.
        tracker_weight: Float. Weight of a batch in the per-output trackers.
        real: `RealRows` of a padded micro-batch. Defaults to `None`.
    """

    def __init__(
        self,
        loss: keras.losses.Loss,
        denominators: tf.Tensor,
        rows: tf.Tensor,
        row_weight: tf.Tensor,
        tracker_weight: float,
        real: RealRows | None = None,
    ) -> None:
        self._rows = rows
        self._real = real
        self._row_weight = row_weight
        self._denominators = denominators
        self._local: list[tf.Tensor] = []
        self.loss = _compat.clone_loss(loss)
        losses = [entry.loss for entry in _compat.flat_losses(loss)]
        weight = tracker_weight * row_weight
        # Keras tracks a vector of values by its rows, a mean by its batch.
        weights = [rows if _is_unreduced(one) else weight for one in losses]
        _compat.replace_flat_losses(
            self.loss,
            [self._term(one) for one in losses],
            [
                _WeightedTracker(metric, weight)
                # One output has no tracker.
                for metric, weight in zip(loss.metrics, weights, strict=False)
            ],
        )

    @property
    def local_denominators(self) -> tf.Tensor:
        """D of each loss over this micro-batch, as a float32 vector."""
        return tf.stack(self._local) if self._local else tf.zeros((0,))

    def _term(self, loss: Any) -> Callable[..., tf.Tensor]:
        def value(y_true: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
            parts = split_loss(
                loss, y_true, y_pred, sample_weight, self._rows, self._real
            )
            if parts is None:
                return loss(y_true, y_pred, sample_weight)
            denominator = self._denominators[len(self._local)]
            self._local.append(parts.denominator)
            part = _reduce(loss, parts, denominator)
            return part / tf.cast(self._row_weight, part.dtype)

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


class LossParts(NamedTuple):
    """A loss as a sum and what to divide it by.

    Attributes:
        total: Float scalar S. Sum of the weighted and masked values.
        per_row: Float scalar. Values per row, where the denominator counts
            rows; else 1.
        denominator: Float32 scalar D. It never needs the values, only masks,
            weights or the number of rows: TensorFlow then prunes the forward
            pass from what counts the denominators.
    """

    total: tf.Tensor
    per_row: Any
    denominator: tf.Tensor


def split_loss(
    loss: Any,
    y_true: Any,
    y_pred: Any,
    sample_weight: Any,
    rows: Any,
    real: RealRows | None = None,
) -> LossParts | None:
    """Returns a loss in parts, or `None` if it has none.

    Args:
        loss: A Keras loss.
        y_true: Targets.
        y_pred: Predictions; a Keras mask on them counts.
        sample_weight: Weights or `None`.
        rows: Int32 scalar. Rows of the micro-batch.
        real: `RealRows` of a padded micro-batch, of which `denominator` then
            tells nothing. Defaults to `None`.

    Returns:
        `LossParts`, or `None` for a loss that gives one number for a batch and
        so cannot be split.
    """
    if type(loss).__call__ is not keras.losses.Loss.__call__:
        return None
    recorded: list[tf.Tensor] = []

    def call(y_true: Any, y_pred: Any) -> tf.Tensor:
        recorded.append(loss.call(y_true, y_pred))
        return recorded[-1]

    weighted = _apply(loss, call, y_true, y_pred, sample_weight)
    values = recorded[0]
    if not _has_rows(values, y_pred):
        return None
    if real is not None:
        if not real.are_in(weighted):
            return None
        weighted = real.keep(weighted)
    total = tf.reduce_sum(weighted)
    sums_weights = (
        loss.reduction == "mean_with_sample_weight"
        and sample_weight is not None
    )
    masks = [
        mask
        for mask in (_compat.get_mask(values), _compat.get_mask(y_pred))
        if mask is not None
    ]
    # Keras averages unreduced values for the history, masked or not.
    if _is_unreduced(loss) or not (sums_weights or masks):
        count = tf.cast(rows, tf.float32)
        size = tf.cast(tf.size(weighted), tf.float32)
        given = count if real is None else float(real.size)
        return LossParts(total, tf.math.divide_no_nan(size, given), count)

    def ones(y_true: Any, y_pred: Any) -> tf.Tensor:
        # Keras sums the weights as they are given, not broadcast to the values.
        shape = (
            [1] * values.shape.rank if sums_weights else _shape(values, masks)
        )
        result = tf.ones(shape, values.dtype)
        _compat.set_mask(result, _compat.get_mask(values))
        return result

    weight = sample_weight if sums_weights else None
    counted = _apply(loss, ones, y_true, y_pred, weight)
    denominator = tf.reduce_sum(tf.cast(counted, tf.float32))
    return LossParts(total, 1.0, tf.stop_gradient(denominator))


def _shape(values: tf.Tensor, masks: list) -> tf.Tensor:
    """Returns the shape of values, from a mask where it is the same."""
    for mask in masks:
        if mask.shape.rank == values.shape.rank and all(
            a == b for a, b in zip(mask.shape, values.shape, strict=True)
        ):
            return tf.shape(mask)
    return tf.shape(values)


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


@contextlib.contextmanager
def summed_activity_losses(
    model: keras.Model,
    row_weight: tf.Tensor | None,
    real: RealRows | None = None,
) -> Iterator[None]:
    """Lets the activity regularizers of micro-batches add up.

    They are averaged over rows like all that is added to a loss. That is right
    where Keras divides them by the rows. Where it does not, they are sums.

    Args:
        model: The model.
        row_weight: Float32 scalar. Share of the micro-batch in the rows, or
            `None` for a whole batch.
        real: `RealRows` of a padded micro-batch. Defaults to `None`.
    """
    averages = _compat.averages_activity_losses()
    with contextlib.ExitStack() as stack:
        if row_weight is not None and not (averages and real is None):
            for layer in _compat.layers_of(model):
                regularizer = layer.activity_regularizer
                if regularizer is None:
                    continue
                if real is not None:
                    regularizer = _unpadded(regularizer, real, averages)
                if not averages:
                    regularizer = _divided(regularizer, row_weight)
                stack.enter_context(
                    replaced_activity_regularizer(layer, regularizer)
                )
        yield


@contextlib.contextmanager
def replaced_activity_regularizer(
    layer: keras.layers.Layer, regularizer: Callable
) -> Iterator[None]:
    """Lets a layer regularize its outputs with another function."""
    original = layer.activity_regularizer
    # Past `__setattr__`, which would start to track it.
    vars(layer)["activity_regularizer"] = regularizer
    try:
        yield
    finally:
        vars(layer)["activity_regularizer"] = original


def _divided(regularizer: Callable, divisor: tf.Tensor) -> Callable:
    def divided(output: tf.Tensor) -> tf.Tensor:
        loss = regularizer(output)
        return loss / tf.cast(divisor, loss.dtype)

    return divided


def _unpadded(
    regularizer: Callable, real: RealRows, averages: bool
) -> Callable:
    """Returns a regularizer that sees zeros in place of padding."""

    def unpadded(output: tf.Tensor) -> tf.Tensor:
        if not real.are_in(output):
            return regularizer(output)
        loss = regularizer(real.keep(output))
        # Keras is going to divide by all rows.
        scale = real.size / real.count if averages else 1.0
        return loss * tf.cast(scale, loss.dtype)

    return unpadded


def _has_rows(values: tf.Tensor, y_pred: Any) -> bool:
    """Whether the values of a loss have a row per example.

    A first dimension that does not follow the batch is no row: a loss per
    class, or one number with its dimensions kept.
    """
    if not tf.is_tensor(values):
        # A Python number is a loss, too.
        return False
    if values.shape.rank in (None, 0):
        return values.shape.rank is None
    rows = tf.nest.flatten(y_pred)[0].shape[:1].as_list()
    return rows != [None] or values.shape[0] is None


def _is_unreduced(loss: Any) -> bool:
    return getattr(loss, "reduction", None) in (None, "none")


def _reduce(loss: Any, parts: LossParts, denominator: tf.Tensor) -> tf.Tensor:
    """Returns what a micro-batch contributes to the loss of its batch."""
    total = parts.total
    if loss.reduction == "sum":
        return total
    divisor = tf.cast(denominator * parts.per_row, total.dtype)
    mean = tf.math.divide_no_nan(total, divisor)
    if _is_unreduced(loss):
        # Keras differentiates the sum of the values but tracks their mean.
        slope = total - tf.stop_gradient(total)
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
