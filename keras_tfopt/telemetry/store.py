"""The values of all metrics, as far as they are known."""

import bisect
import logging
import math
import threading

from keras_tfopt.telemetry.catalogue import metric_named
from keras_tfopt.telemetry.history import Distribution
from keras_tfopt.telemetry.history import Labels
from keras_tfopt.telemetry.history import Series
from keras_tfopt.telemetry.history import Snapshot

_logger = logging.getLogger("keras_tfopt")


class MetricStore:
    """Keeps the values of all metrics, as far as they are known.

    A metric without a value has no series: never 0, never NaN. Only metrics of
    the catalogue have values.
    """

    def __init__(self) -> None:
        self._values: dict[Series, float] = {}
        self._counts: dict[str, list[int]] = {}
        self._totals: dict[str, float] = {}
        self._absences: set[str] = set()
        # Written by the sampler, read by whoever publishes.
        self._lock = threading.Lock()

    def set(self, name: str, value: float | None, **labels: str) -> None:
        """Sets a gauge, or takes its series away.

        Args:
            name: String. Name of the metric, without the prefix.
            value: Float. `None`, NaN and infinity take the series away.
            **labels: Strings.
        """
        series = _series(name, labels)
        with self._lock:
            if value is None or not math.isfinite(value):
                self._values.pop(series, None)
            else:
                self._values[series] = float(value)

    def add(self, name: str, amount: float, **labels: str) -> None:
        """Adds to a counter; adding 0 makes its series known."""
        series = _series(name, labels)
        with self._lock:
            self._values[series] = self._values.get(series, 0.0) + amount

    def raise_to(self, name: str, value: float, **labels: str) -> None:
        """Sets a counter that somebody else counts, but never back."""
        series = _series(name, labels)
        with self._lock:
            self._values[series] = max(
                float(value), self._values.get(series, 0.0)
            )

    def observe(self, name: str, value: float, count: int = 1) -> None:
        """Adds observations of one value to a histogram."""
        bounds = metric_named(name).buckets
        with self._lock:
            counts = self._counts.setdefault(name, [0] * (len(bounds) + 1))
            counts[bisect.bisect_left(bounds, value)] += count
            total = self._totals.get(name, 0.0)
            self._totals[name] = total + count * value

    def explain_absence(self, name: str, reason: str) -> None:
        """Logs once why a metric has no value."""
        metric_named(name)
        if name not in self._absences:
            self._absences.add(name)
            _logger.info("No value for %s: %s.", name, reason)

    def snapshot(self, time: float, step: int) -> Snapshot:
        """Returns all values as they are now."""
        with self._lock:
            distributions = {
                name: Distribution(tuple(counts), self._totals[name])
                for name, counts in self._counts.items()
            }
            return Snapshot(time, step, dict(self._values), distributions)


def _series(name: str, labels: dict[str, str]) -> Series:
    expected = metric_named(name).labels
    if set(labels) != set(expected):
        raise ValueError(
            f"Invalid labels of the metric `{name}`. "
            f"Received: {sorted(labels)}. Expected: {sorted(expected)}."
        )
    ordered: Labels = tuple((label, labels[label]) for label in expected)
    return name, ordered
