"""What is shown and judged: values, and what is computed from them.

Each signal exists twice: as an expression for Prometheus, and as a computation
on the history in this process. Dashboards, rules and alerts in the process come
from the same signal.
"""

import dataclasses
from typing import Protocol

from keras_tfopt.telemetry.history import History
from keras_tfopt.telemetry.history import Labels

PREFIX = "keras_tfopt_"


class Signal(Protocol):
    """One number for each set of labels."""

    @property
    def promql(self) -> str:
        """The expression for Prometheus."""

    def measure(self, history: History) -> dict[Labels, float]:
        """Returns the numbers that are known, by labels."""


@dataclasses.dataclass(frozen=True)
class Value:
    """A metric as it is.

    Attributes:
        metric: String. Name without the prefix.
    """

    metric: str

    @property
    def promql(self) -> str:
        """The expression for Prometheus."""
        return PREFIX + self.metric

    def measure(self, history: History) -> dict[Labels, float]:
        """Returns the newest values."""
        latest = history.latest
        return {} if latest is None else latest.of(self.metric)


@dataclasses.dataclass(frozen=True)
class Increase:
    """How far a counter rose.

    Attributes:
        metric: String. Name without the prefix.
        seconds: Integer. In which time.
    """

    metric: str
    seconds: int

    @property
    def promql(self) -> str:
        """The expression for Prometheus."""
        return f"increase({PREFIX}{self.metric}[{duration(self.seconds)}])"

    def measure(self, history: History) -> dict[Labels, float]:
        """Returns the differences, since the first known value at most."""
        return {
            labels: change
            for labels, (change, _) in _changes(
                history, self.metric, self.seconds
            ).items()
        }


@dataclasses.dataclass(frozen=True)
class Rate:
    """How fast a counter rises, per second.

    Attributes:
        metric: String. Name without the prefix.
        seconds: Integer. Time to average over.
    """

    metric: str
    seconds: int = 60

    @property
    def promql(self) -> str:
        """The expression for Prometheus."""
        return f"rate({PREFIX}{self.metric}[{duration(self.seconds)}])"

    def measure(self, history: History) -> dict[Labels, float]:
        """Returns the rates where there is more than one value."""
        return {
            labels: change / seconds
            for labels, (change, seconds) in _changes(
                history, self.metric, self.seconds
            ).items()
            if seconds > 0
        }


@dataclasses.dataclass(frozen=True)
class Age:
    """Seconds since the time that a metric tells.

    Attributes:
        metric: String. Name without the prefix.
    """

    metric: str

    @property
    def promql(self) -> str:
        """The expression for Prometheus."""
        return f"time() - {PREFIX}{self.metric}"

    def measure(self, history: History) -> dict[Labels, float]:
        """Returns the ages at the newest snapshot."""
        latest = history.latest
        if latest is None:
            return {}
        return {
            labels: latest.time - value
            for labels, value in latest.of(self.metric).items()
        }


@dataclasses.dataclass(frozen=True)
class Average:
    """The mean of a gauge over some time.

    Attributes:
        metric: String. Name without the prefix.
        seconds: Integer.
    """

    metric: str
    seconds: int

    @property
    def promql(self) -> str:
        """The expression for Prometheus."""
        return f"avg_over_time({PREFIX}{self.metric}[{duration(self.seconds)}])"

    def measure(self, history: History) -> dict[Labels, float]:
        """Returns the means."""
        found: dict[Labels, list[float]] = {}
        for snapshot in history.within(self.seconds):
            for labels, value in snapshot.of(self.metric).items():
                found.setdefault(labels, []).append(value)
        return {labels: sum(v) / len(v) for labels, v in found.items()}


@dataclasses.dataclass(frozen=True)
class Share:
    """The share of one label's value in a counter.

    Attributes:
        metric: String. Name without the prefix.
        label: String. Its only label.
        value: String.
    """

    metric: str
    label: str
    value: str

    @property
    def promql(self) -> str:
        """The expression for Prometheus."""
        name = PREFIX + self.metric
        return (
            f'sum without ({self.label}) ({name}{{{self.label}="{self.value}"}}'
            f") / sum without ({self.label}) ({name})"
        )

    def measure(self, history: History) -> dict[Labels, float]:
        """Returns the share, once anything was counted."""
        latest = history.latest
        counts = {} if latest is None else latest.of(self.metric)
        total = sum(counts.values())
        if not total:
            return {}
        return {(): counts.get(((self.label, self.value),), 0.0) / total}


@dataclasses.dataclass(frozen=True)
class Quotient:
    """One signal divided by another one of the same labels.

    Attributes:
        numerator: `Signal`.
        denominator: `Signal`.
    """

    numerator: Signal
    denominator: Signal

    @property
    def promql(self) -> str:
        """The expression for Prometheus."""
        return f"{self.numerator.promql} / {self.denominator.promql}"

    def measure(self, history: History) -> dict[Labels, float]:
        """Returns the quotients where both are known, and not by zero."""
        below = self.denominator.measure(history)
        return {
            labels: value / below[labels]
            for labels, value in self.numerator.measure(history).items()
            if below.get(labels)
        }


@dataclasses.dataclass(frozen=True)
class Quantile:
    """A quantile of what a histogram saw of late.

    Attributes:
        metric: String. Name without the prefix.
        bounds: Tuple of the upper bounds of its buckets.
        share: Float in (0, 1).
        seconds: Integer.
    """

    metric: str
    bounds: tuple[float, ...]
    share: float
    seconds: int = 60

    @property
    def promql(self) -> str:
        """The expression for Prometheus."""
        buckets = f"{PREFIX}{self.metric}_bucket[{duration(self.seconds)}]"
        rates = f"sum by (job, instance, le) (rate({buckets}))"
        return f"histogram_quantile({self.share}, {rates})"

    def measure(self, history: History) -> dict[Labels, float]:
        """Returns the quantile, interpolated as Prometheus does."""
        found = [
            s.distributions[self.metric]
            for s in history.within(self.seconds)
            if self.metric in s.distributions
        ]
        if not found:
            return {}
        first, last = found[0].counts, found[-1].counts
        counts = [b - a for a, b in zip(first, last, strict=True)]
        value = quantile(counts, self.bounds, self.share)
        return {} if value is None else {(): value}


def quantile(
    counts: list[int], bounds: tuple[float, ...], share: float
) -> float | None:
    """Returns a quantile of observations that are counted in buckets.

    Args:
        counts: List of integers, one more than there are bounds.
        bounds: Upper bounds of the buckets, ascending.
        share: Float in (0, 1).

    Returns:
        Float, or `None` without observations.
    """
    rank = share * sum(counts)
    if not rank:
        return None
    lower = 0.0
    for count, upper in zip(counts, bounds, strict=False):
        if count >= rank:
            return lower + (upper - lower) * rank / count
        rank -= count
        lower = upper
    return bounds[-1]


def duration(seconds: int) -> str:
    """Returns seconds as Prometheus writes durations."""
    if seconds and seconds % 60 == 0:
        return f"{seconds // 60}m"
    return f"{seconds}s"


def _changes(
    history: History, metric: str, seconds: float
) -> dict[Labels, tuple[float, float]]:
    """Returns how far counters rose, and in how many seconds."""
    first: dict[Labels, tuple[float, float]] = {}
    last: dict[Labels, tuple[float, float]] = {}
    for snapshot in history.within(seconds):
        for labels, value in snapshot.of(metric).items():
            first.setdefault(labels, (value, snapshot.time))
            last[labels] = (value, snapshot.time)
    return {
        labels: (last[labels][0] - value, last[labels][1] - time)
        for labels, (value, time) in first.items()
    }
