"""Values in the forms that Prometheus reads."""

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client import core
from prometheus_client.registry import Collector

from keras_tfopt.telemetry.catalogue import CATALOGUE
from keras_tfopt.telemetry.history import History
from keras_tfopt.telemetry.history import Snapshot
from keras_tfopt.telemetry.metric import Metric


def registry_of(
    history: History, worker: str | None = None
) -> CollectorRegistry:
    """Returns a registry of its own for the values of a history.

    Args:
        history: `History`.
        worker: String or `None`. Value of the label `worker` of all series.
    """
    labels = {} if worker is None else {"worker": worker}
    registry = CollectorRegistry()
    registry.register(HistoryCollector(history, labels))
    return registry


class HistoryCollector(Collector):
    """Gives a registry the newest values of a history.

    Args:
        history: `History`.
        labels: Dict of labels that all series have, such as the worker.
    """

    def __init__(self, history: History, labels: dict[str, str]) -> None:
        self._history = history
        self._labels = labels

    def describe(self) -> list[Any]:
        """Returns nothing: what is there is only known when asked."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yields a family for each metric that has values."""
        snapshot = self._history.latest
        if snapshot is None:
            return
        for metric in CATALOGUE:
            family = self._family(metric, snapshot)
            if family is not None:
                yield family

    def _family(self, metric: Metric, snapshot: Snapshot) -> Any:
        names = [*self._labels, *metric.labels]
        constant = list(self._labels.values())
        if metric.kind == "histogram":
            return self._histogram(metric, snapshot)
        found = snapshot.of(metric.name)
        if not found:
            return None
        if metric.kind == "info":
            family = core.InfoMetricFamily(
                metric.full_name.removesuffix("_info"), metric.help
            )
            for labels in found:
                family.add_metric([], {**self._labels, **dict(labels)})
            return family
        kinds = {
            "gauge": core.GaugeMetricFamily,
            "counter": core.CounterMetricFamily,
        }
        family = kinds[metric.kind](metric.full_name, metric.help, labels=names)
        for labels, value in found.items():
            family.add_metric([*constant, *(v for _, v in labels)], value)
        return family

    def _histogram(self, metric: Metric, snapshot: Snapshot) -> Any:
        found = snapshot.distributions.get(metric.name)
        if found is None:
            return None
        family = core.HistogramMetricFamily(
            metric.full_name, metric.help, labels=list(self._labels)
        )
        total = 0
        buckets = []
        bounds = [*(str(bound) for bound in metric.buckets), "+Inf"]
        for bound, count in zip(bounds, found.counts, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric(
            list(self._labels.values()), buckets, sum_value=found.total
        )
        return family
