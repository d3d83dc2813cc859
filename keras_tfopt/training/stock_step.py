"""Keras' own step, for models whose writes cannot be kept out of it."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.accumulation import StepMode


def with_log_vectors(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a step whose logs have one dimension.

    Over several workers Keras averages logs along their first one.
    """

    def run(data: Any) -> Any:
        return tf.nest.map_structure(
            lambda log: tf.reshape(log, (1,)), step(data)
        )

    return run


class StockStepFunction:
    """Runs steps as Keras makes them, on batches that are held.

    Stands in for a `StepFunction`. A step that fails may have written half of
    its results, so it is never run again.

    Args:
        model: A compiled Keras model.
        mode: `StepMode`.
        deliver: Callable that makes a batch what an iterator delivers. Defaults
            to the batch itself.
        spans_workers: Boolean. Whether the model trains on several workers.
            Defaults to `False`.
    """

    compiled = None

    def __init__(
        self,
        model: keras.Model,
        mode: StepMode,
        deliver: Callable[[Any], Any] | None = None,
        spans_workers: bool = False,
    ) -> None:
        step = model.train_step if mode.differentiates else model.test_step
        if spans_workers:
            step = with_log_vectors(step)
        self._run = _compat.stock_function(model, step)
        self._deliver = deliver or (lambda batch: batch)
        self.capacity = model.steps_per_execution

    def __call__(self, batches: list[Any], value: tf.Tensor) -> Any:
        """Runs one step for each batch and returns the last logs."""
        del value
        return self._run(map(self._deliver, batches))

    def settle(self, error: BaseException) -> int:
        """Raises the error again: nobody knows what was written."""
        error.add_note(
            "The step is Keras' own: what it wrote before it failed stays."
        )
        raise error
