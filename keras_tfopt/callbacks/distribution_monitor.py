"""Watching replicas: how they share the work, and what talking costs."""

import logging
from typing import Any

import numpy as np
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.distribution.replicas import is_synchronous
from keras_tfopt.distribution.replicas import spans_workers
from keras_tfopt.telemetry.callback import TelemetryCallback
from keras_tfopt.telemetry.history import History
from keras_tfopt.telemetry.records import Reading
from keras_tfopt.telemetry.replica_figures import ReplicaFigures
from keras_tfopt.training import guarded_step_of
from keras_tfopt.training import release_guard
from keras_tfopt.training.checks import overridden_step
from keras_tfopt.training.guarded_step import GuardedStep
from keras_tfopt.training.replica_clock import ReplicaClock

_logger = logging.getLogger("keras_tfopt")

_METRICS = (
    "communication_time_ratio",
    "load_imbalance_ratio",
    "replica_compute_seconds",
    "reduced_bytes_total",
)
# Fewer may be out of line by chance.
_MIN_STEPS = 3


class DistributionMonitor(TelemetryCallback):
    """Measures how replicas share the work of a step, and what talking costs.

    Under `MirroredStrategy` the step itself notes when each replica begins,
    when it has its gradients, and when it has the sum of all. Waiting for the
    slowest replica is imbalance, not communication. What is computed stays the
    same; a step takes some tens of microseconds longer.

    A replica that is slower than the others, and communication that takes too
    long, are told once in the log `keras_tfopt`. With one replica, or where the
    step of a model cannot be looked into, there are no values, and the log says
    why.

    | Metric | What |
    | --- | --- |
    | `communication_time_ratio` | share of adding up gradients in a step |
    | `load_imbalance_ratio` | slowest replica over the mean, minus one |
    | `replica_compute_seconds` | for its gradients, by replica |
    | `reduced_bytes_total` | gradients that each replica gave |

    Example:

    ```python
    import keras
    import tensorflow as tf
    from keras_tfopt import callbacks

    with tf.distribute.MirroredStrategy().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    monitor = callbacks.DistributionMonitor()
    x, y = keras.ops.ones((16, 4)), keras.ops.ones((16, 1))
    model.fit(x, y, batch_size=4, callbacks=[monitor], verbose=0)
    print(monitor.figures())
    ```

    Args:
        max_communication_ratio: Float in (0, 1). Share of the time to warn
            beyond. Defaults to 0.2.
        max_imbalance_ratio: Float above 0. By how much one replica may take
            longer than the mean. Defaults to 0.1.
        interval_seconds: Float. Time between two looks. Defaults to 10.

    Raises:
        ValueError: If a value is none of these.
    """

    def __init__(
        self,
        max_communication_ratio: float = 0.2,
        max_imbalance_ratio: float = 0.1,
        interval_seconds: float = 10.0,
    ) -> None:
        super().__init__(interval_seconds)
        if not 0 < max_communication_ratio < 1:
            raise ValueError(
                "Invalid value for argument `max_communication_ratio`. "
                f"Received: max_communication_ratio={max_communication_ratio!r}"
                ". Expected: a number in (0, 1)."
            )
        if not max_imbalance_ratio > 0:
            raise ValueError(
                "Invalid value for argument `max_imbalance_ratio`. Received: "
                f"max_imbalance_ratio={max_imbalance_ratio!r}. Expected: a "
                "number above 0."
            )
        self.max_communication_ratio = max_communication_ratio
        self.max_imbalance_ratio = max_imbalance_ratio
        self._clock: ReplicaClock | None = None
        # Sums when `fit` began, at the last reading, and at the last look.
        self._begin = self._read = self._seen = np.zeros(0)
        self._readings: list[Reading] = []
        self._told: set[str] = set()

    def figures(self) -> ReplicaFigures | None:
        """Returns the means of the last `fit`, `None` without steps.

        The first step of a model is left out.
        """
        if self._clock is None:
            return None
        return ReplicaFigures.of(self._clock.read() - self._begin)

    def on_train_begin(self, logs: Any = None) -> None:
        """Joins the session, with a clock in the steps of the model."""
        strategy = _compat.strategy_of(self.model)
        why_not = _why_not(strategy, overridden_step(self.model, "train"))
        self._readings, self._told = [], set()
        if strategy is not None and why_not is None:
            self._watch_replicas(strategy.num_replicas_in_sync)
        else:
            self._clock = None
        super().on_train_begin(logs)
        if why_not is not None and self._session is not None:
            for name in _METRICS:
                self._session.store.explain_absence(name, why_not)

    def on_train_end(self, logs: Any = None) -> None:
        """Leaves the session, and the steps of the model."""
        super().on_train_end(logs)
        guard = self.model.train_function
        if self._clock is not None and isinstance(guard, GuardedStep):
            guard.remove_check(self._clock)
            release_guard(self.model, "train")

    def metric_readings(self) -> list[Reading]:
        """Returns the means since the last time, for telemetry."""
        if self._clock is None:
            return []
        sums = self._clock.read()
        figures = ReplicaFigures.of(sums - self._read)
        if figures is not None:
            self._read = sums
            total = float(sums[3])
            self._readings = [
                *figures.metric_readings(),
                Reading("reduced_bytes_total", total),
            ]
        return self._readings

    def publish(self, history: History) -> None:
        """Looks at the steps since the last look, and warns once of each."""
        if self._clock is None:
            return
        sums = self._clock.read()
        figures = ReplicaFigures.of(sums - self._seen)
        if figures is None or figures.steps < _MIN_STEPS:
            return
        self._seen = sums
        imbalance = figures.load_imbalance_ratio
        if imbalance is not None and imbalance > self.max_imbalance_ratio:
            self._tell(
                "imbalance",
                f"Replica {figures.slowest} computes {imbalance:.0%} longer "
                "than the mean of all, and the others wait for it. Look at "
                "its device, at what else runs there, and at its share of "
                "the rows.",
            )
        share = figures.communication_time_ratio
        if share is not None and share > self.max_communication_ratio:
            self._tell(
                "communication",
                f"Replicas spend {share:.0%} of a step on adding up "
                "gradients. Larger batches for each communicate less.",
            )

    def _watch_replicas(self, count: int) -> None:
        guard = guarded_step_of(self.model)
        if self._clock is None or self._clock.count != count:
            self._clock = ReplicaClock(count)
        guard.add_check(self._clock)
        self._begin = self._read = self._seen = self._clock.read()

    def _tell(self, what: str, message: str) -> None:
        if what not in self._told:
            self._told.add(what)
            _logger.warning(message)


def _why_not(
    strategy: tf.distribute.Strategy | None, own_step: str | None
) -> str | None:
    """Returns why replicas cannot be looked into, `None` if they can."""
    if strategy is None or strategy.num_replicas_in_sync < 2:
        return "there is one replica, which talks to nobody"
    if not is_synchronous(strategy):
        return (
            f"the steps of {type(strategy).__name__} are Keras' own and cannot "
            "be looked into"
        )
    if spans_workers(strategy):
        return "the clocks of several workers cannot be compared"
    if own_step:
        return f"the model has its own {own_step}"
    return None
