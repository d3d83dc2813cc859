"""`predict`, in smaller parts where memory is short."""

from collections.abc import Callable
import time
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt.accumulation.split import check_rows
from keras_tfopt.accumulation.split import take_rows
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.batch import spec_of
from keras_tfopt.training.batch import static_rows
from keras_tfopt.training.batch import to_tensors
from keras_tfopt.training.plan_control import PlanControl
from keras_tfopt.training.settings import AccumulationSettings


class GuardedPrediction:
    """Stands in for `model.predict_function`.

    Keras draws the batches of `predict` itself, and a prediction writes
    nothing: a batch that fails can run again in parts.

    Args:
        model: A Keras model.
        function: Keras' own `predict_function` of the model.
        settings: `AccumulationSettings`, whose plan is in force.

    Attributes:
        control: `PlanControl` that the remedies register with.
    """

    def __init__(
        self,
        model: keras.Model,
        function: Callable[[list[Any]], Any],
        settings: AccumulationSettings,
    ) -> None:
        self._function = function
        self.control = PlanControl(model, settings, "prediction")

    def __call__(self, batches: list[Any]) -> Any:
        """Returns the outputs for all batches, one after the other."""
        batches = [to_tensors(batch) for batch in batches]
        tried: tuple[ExecutionPlan, ...] = ()
        while True:
            plan = self.control.plan
            start = time.perf_counter()
            try:
                outputs = self._predict(batches, plan)
            except Exception as error:
                tried += (plan,)
                if not self.control.recover(error, batches[0], tried, start):
                    raise
            else:
                self.control.review(batches[0], len(batches))
                return outputs

    def reset(self) -> None:
        """Forgets what an interrupted `predict` left behind."""
        self.control.clear()

    def _predict(self, batches: list[Any], plan: ExecutionPlan) -> Any:
        if not plan.is_split:
            return self._function(batches)
        parts = [
            self._function([part])
            for batch in batches
            for part in _parts(batch, plan)
        ]
        return tf.nest.map_structure(lambda *leaves: _concat(leaves), *parts)


def _parts(batch: Any, plan: ExecutionPlan) -> list[Any]:
    check_rows(batch)
    rows = static_rows(spec_of(batch)) or 1
    size = plan.rows_of_microbatch(rows)
    return [
        take_rows(batch, start, min(size, rows - start))
        for start in range(0, rows, size)
    ]


def _concat(leaves: tuple) -> Any:
    if isinstance(leaves[0], tf.SparseTensor):
        return tf.sparse.concat(0, list(leaves))
    return tf.concat(leaves, 0)
