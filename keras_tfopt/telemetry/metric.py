"""What is known of a metric before it has any value."""

import dataclasses

from keras_tfopt.telemetry.signals import PREFIX
from keras_tfopt.telemetry.signals import Quantile
from keras_tfopt.telemetry.signals import Rate
from keras_tfopt.telemetry.signals import Signal
from keras_tfopt.telemetry.signals import Value

TAG_PREFIX = "keras_tfopt/"


@dataclasses.dataclass(frozen=True)
class Condition:
    """A signal on the wrong side of a threshold.

    Attributes:
        signal: `Signal`.
        comparison: String. `">"` or `"<"`.
        threshold: Float.
    """

    signal: Signal
    comparison: str
    threshold: float

    @property
    def promql(self) -> str:
        """The expression for Prometheus."""
        return f"{self.signal.promql} {self.comparison} {self.threshold:g}"

    def holds(self, value: float) -> bool:
        """Whether a value is on the wrong side."""
        if self.comparison == ">":
            return value > self.threshold
        return value < self.threshold

    def is_over(self, value: float, margin: float) -> bool:
        """Whether a value is on the right side by a share of the threshold."""
        distance = margin * abs(self.threshold)
        if self.comparison == ">":
            return value <= self.threshold - distance
        return value >= self.threshold + distance


@dataclasses.dataclass(frozen=True)
class Alert:
    """When somebody shall be told.

    Attributes:
        name: String. As in Prometheus' rules.
        condition: `Condition`.
        summary: String. What is wrong, and what to do.
        also: Tuple of `Condition` that must hold, too.
        for_seconds: Integer. How long all must hold.
        severity: String. `"info"`, `"warning"` or `"critical"`.
    """

    name: str
    condition: Condition
    summary: str
    also: tuple[Condition, ...] = ()
    for_seconds: int = 0
    severity: str = "warning"

    @property
    def promql(self) -> str:
        """The expression for Prometheus."""
        parts = [self.condition.promql]
        parts += [f"({condition.promql})" for condition in self.also]
        return " and ".join(parts)


@dataclasses.dataclass(frozen=True)
class Curve:
    """What a dashboard shows of a metric.

    Attributes:
        tag: String. Group and name in TensorBoard, without the prefix.
        signal: `Signal`.
        unit: String. `"bytes"`, `"seconds"`, `"ratio"`, or empty.
        chart: String. Title of the chart that it shares with other curves of
            its group, or empty for one of its own.
    """

    tag: str
    signal: Signal
    unit: str = ""
    chart: str = ""

    @property
    def group(self) -> str:
        """The part of a dashboard that it belongs to."""
        return self.tag.partition("/")[0]


@dataclasses.dataclass(frozen=True)
class Metric:
    """What is known of a metric before it has any value.

    Attributes:
        name: String, without the prefix.
        kind: String. `"gauge"`, `"counter"`, `"histogram"` or `"info"`.
        unit: String. `"bytes"`, `"seconds"`, `"ratio"`, or empty for a number.
        meaning: String. One line.
        source: String. Where the value comes from.
        labels: Tuple of strings.
        curves: Tuple of `Curve`.
        alerts: Tuple of `Alert`.
        buckets: Tuple of floats. Upper bounds, of a histogram.
    """

    name: str
    kind: str
    unit: str
    meaning: str
    source: str
    labels: tuple[str, ...] = ()
    curves: tuple[Curve, ...] = ()
    alerts: tuple[Alert, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        """The name in Prometheus."""
        return PREFIX + self.name

    @property
    def help(self) -> str:
        """The text beside the name in Prometheus."""
        return f"{self.meaning} Source: {self.source}."


def gauge(
    name: str,
    unit: str,
    meaning: str,
    source: str,
    group: str | None,
    labels: tuple[str, ...] = (),
    alerts: tuple[Alert, ...] = (),
    tag: str | None = None,
    chart: str = "",
) -> Metric:
    """Returns a gauge that is shown as it is.

    Args:
        name: As for `Metric`.
        unit: As for `Metric`.
        meaning: As for `Metric`.
        source: As for `Metric`.
        group: String, or `None` for what no dashboard shows.
        labels: As for `Metric`.
        alerts: As for `Metric`.
        tag: String. Name in the group. Defaults to the name without the
            group in front.
        chart: As for `Curve`.
    """
    curves: tuple[Curve, ...] = ()
    if group is not None:
        shown = tag or name.removeprefix(f"{group}_")
        curves = (Curve(f"{group}/{shown}", Value(name), unit, chart),)
    return Metric(name, "gauge", unit, meaning, source, labels, curves, alerts)


def counter(
    name: str,
    unit: str,
    meaning: str,
    source: str,
    curves: tuple[Curve, ...] = (),
    labels: tuple[str, ...] = (),
    alerts: tuple[Alert, ...] = (),
) -> Metric:
    """Returns a counter; see `Metric`."""
    return Metric(
        name, "counter", unit, meaning, source, labels, curves, alerts
    )


def rate_curve(tag: str, name: str, unit: str = "", chart: str = "") -> Curve:
    """Returns the curve of a counter's rise per second."""
    return Curve(tag, Rate(name), unit, chart)


def quantile_curve(
    tag: str, name: str, buckets: tuple[float, ...], share: float
) -> Curve:
    """Returns the curve of a quantile of seconds."""
    return Curve(tag, Quantile(name, buckets, share), "seconds")
