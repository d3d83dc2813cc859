"""Prediction by the workers of a parameter server strategy."""

from typing import Any

import keras
import tensorflow as tf

from keras_tfopt.training.batch import to_tensors
from keras_tfopt.training.step_queue import StepQueue


class CoordinatedPrediction:
    """Stands in for `model.predict_function`.

    Args:
        model: A Keras model under a parameter server strategy.
        queue: `StepQueue`.
    """

    def __init__(self, model: keras.Model, queue: StepQueue) -> None:
        self._model = model
        self._queue = queue
        self._strategy = queue.strategy
        self._on_batch = tf.function(
            self._run, autograph=False, reduce_retracing=True
        )

    def __call__(self, batches: list[Any]) -> Any:
        """Returns the outputs of batches, in their order.

        The workers share the batches of one call, of which there are
        `steps_per_execution`.
        """
        for batch in batches:
            self._queue.schedule(self._on_batch, to_tensors(batch))
        outputs = list(self._queue.rest())
        return keras.tree.map_structure(
            lambda *parts: (
                parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)
            ),
            *outputs,
        )

    def _run(self, batch: Any) -> Any:
        return self._strategy.run(self._model.predict_step, args=(batch,))
