"""What a step adds to metrics, as a result instead of a write."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_tfopt import _compat


def check_additive(model: keras.Model) -> None:
    """Raises if a metric of a model is no sum over its updates.

    Raises:
        ValueError: Names the metric.
    """
    # The leaves first, whose names tell more than that of their bundle.
    for metric in [*_compat.flat_metrics(model), *model.metrics]:
        with keras.StatelessScope() as scope:
            metric.reset_state()
        starts = [scope.get_current_value(one) for one in metric.variables]
        is_sum = all(one.aggregation == "sum" for one in metric.variables)
        if not is_sum or any(np.any(s) for s in starts if s is not None):
            raise ValueError(
                "Workers that do not wait for each other can only add up what "
                f"metrics count. Received: {type(metric).__name__} "
                f"{metric.name!r}, whose state is no sum that starts at 0. "
                "Expected: metrics that are made of sums, as those of Keras."
            )


@contextlib.contextmanager
def collected_updates(model: keras.Model) -> Iterator[Callable[[], list]]:
    """Keeps a step from writing to metrics, while its graph is made.

    Several workers would write over what others have counted.

    Args:
        model: A compiled Keras model.

    Yields:
        Callable that returns what was added to each of
        `model.metrics_variables`.
    """
    sums: dict[int, Any] = {}

    def collect(metric: keras.metrics.Metric) -> Callable:
        update = metric.update_state

        def update_state(*args: Any, **kwargs: Any) -> None:
            before = [(v, _zeros(v)) for v in metric.variables]
            with keras.StatelessScope(state_mapping=before) as scope:
                update(*args, **kwargs)
            for variable, zeros in before:
                added = scope.get_current_value(variable)
                sums[id(variable)] = sums.get(id(variable), zeros) + added

        return update_state

    def sum_of(variable: keras.Variable) -> tf.Tensor:
        return sums.get(id(variable), _zeros(variable))

    stock_result = model.get_metrics_result

    def get_metrics_result() -> dict[str, Any]:
        values = [(v, sum_of(v)) for v in model.metrics_variables]
        with keras.StatelessScope(state_mapping=values):
            return stock_result()

    metrics = list(model.metrics)
    # In `vars`, past the tracking of `__setattr__`.
    for metric in metrics:
        vars(metric)["update_state"] = collect(metric)
    vars(model)["get_metrics_result"] = get_metrics_result
    try:
        yield lambda: [sum_of(v) for v in model.metrics_variables]
    finally:
        del vars(model)["get_metrics_result"]
        for metric in metrics:
            del vars(metric)["update_state"]


class MetricTotals:
    """Adds up what steps return, and makes logs of it.

    Args:
        model: A compiled Keras model.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._totals: list[tf.Tensor] | None = None
        self._add = tf.function(
            self._add_all, autograph=False, reduce_retracing=True
        )

    def add(self, updates: list[tf.Tensor]) -> dict[str, Any]:
        """Adds the updates of one step and returns the metrics' results.

        Args:
            updates: List with one tensor for each variable of the metrics.
        """
        if self._totals is None:
            variables = self._model.metrics_variables
            self._totals = [tf.convert_to_tensor(v) for v in variables]
        self._totals, logs = self._add(self._totals, updates)
        return logs

    def write(self) -> None:
        """Writes the sums to the metrics, where anybody may read them."""
        totals, self._totals = self._totals, None
        variables = self._model.metrics_variables
        for variable, total in zip(variables, totals or [], strict=False):
            variable.assign(total)

    def forget(self) -> None:
        """Forgets what was not written."""
        self._totals = None

    def _add_all(self, totals: list, updates: list) -> tuple[list, dict]:
        model = self._model
        sums = [a + b for a, b in zip(totals, updates, strict=True)]
        mapping = list(zip(model.metrics_variables, sums, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return sums, model.get_metrics_result()


def _zeros(variable: keras.Variable) -> tf.Tensor:
    return tf.zeros(variable.shape, variable.dtype)
