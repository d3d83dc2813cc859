"""Alerts in the process itself, without a Prometheus."""

from collections.abc import Iterable
import dataclasses

from keras_tfopt.telemetry.catalogue import all_alerts
from keras_tfopt.telemetry.history import History
from keras_tfopt.telemetry.history import Labels
from keras_tfopt.telemetry.metric import Alert
from keras_tfopt.telemetry.metric import Condition
from keras_tfopt.telemetry.signals import Signal


@dataclasses.dataclass(frozen=True)
class AlertEvent:
    """An alert that fires, or is over.

    Attributes:
        name: String. Name of the alert.
        state: String. `"firing"` or `"resolved"`.
        severity: String. `"info"`, `"warning"` or `"critical"`.
        summary: String. What is wrong, and what to do.
        value: Float. What was measured.
        threshold: Float. What it was compared with.
        labels: Dict of strings, such as the device.
        step: Integer. Optimizer updates so far.
        time: Float. Seconds since the epoch of the clock.
    """

    name: str
    state: str
    severity: str
    summary: str
    value: float
    threshold: float
    labels: dict[str, str]
    step: int
    time: float


@dataclasses.dataclass
class _State:
    """What is known of one alert for one set of labels."""

    since: float | None = None
    is_firing: bool = False
    told_at: float | None = None


class AlertEngine:
    """Judges the history by the alerts of the catalogue.

    An alert fires when its condition has held for its time. It is over once the
    value is back by a margin, so that one that dances around the threshold is
    told once; and one that comes back within the cooldown is not told again.

    Args:
        alerts: Iterable of `Alert`. Defaults to those of the catalogue.
        margin: Float. Share of the threshold that a value must be back by.
            Defaults to 0.1.
        cooldown_seconds: Float. Defaults to 300.
    """

    def __init__(
        self,
        alerts: Iterable[Alert] | None = None,
        margin: float = 0.1,
        cooldown_seconds: float = 300.0,
    ) -> None:
        self._alerts = tuple(all_alerts() if alerts is None else alerts)
        self._margin = margin
        self._cooldown_seconds = cooldown_seconds
        self._states: dict[tuple[str, Labels], _State] = {}

    def judge(self, history: History) -> list[AlertEvent]:
        """Returns what began to fire, and what is over.

        Args:
            history: `History`, with its newest snapshot.
        """
        latest = history.latest
        if latest is None:
            return []
        events = []
        for alert in self._alerts:
            for labels, value in alert.condition.signal.measure(
                history
            ).items():
                state = self._states.setdefault((alert.name, labels), _State())
                change = self._change(
                    alert, state, value, labels, history, latest.time
                )
                if change is None:
                    continue
                events.append(
                    AlertEvent(
                        name=alert.name,
                        state=change,
                        severity=alert.severity,
                        summary=alert.summary,
                        value=value,
                        threshold=alert.condition.threshold,
                        labels=dict(labels),
                        step=latest.step,
                        time=latest.time,
                    )
                )
        return events

    def _change(
        self,
        alert: Alert,
        state: _State,
        value: float,
        labels: Labels,
        history: History,
        now: float,
    ) -> str | None:
        """Returns the state that an alert changes to and that shall be told."""
        holds = alert.condition.holds(value) and all(
            _holds(condition, labels, history) for condition in alert.also
        )
        if state.is_firing:
            if holds or not alert.condition.is_over(value, self._margin):
                return None
            state.is_firing, state.since = False, None
            return "resolved" if state.told_at is not None else None
        if not holds:
            state.since = None
            return None
        if state.since is None:
            state.since = now
        if now - state.since < alert.for_seconds:
            return None
        state.is_firing = True
        told = state.told_at
        if told is not None and now - told < self._cooldown_seconds:
            return None
        state.told_at = now
        return "firing"


def with_thresholds(
    alerts: Iterable[Alert], thresholds: dict[str, float]
) -> list[Alert]:
    """Returns alerts with some thresholds replaced.

    A stronger alert of the same signal never comes before a weaker one that is
    replaced.

    Args:
        alerts: Iterable of `Alert`.
        thresholds: Dict of floats by name of the alert, with or without
            `KerasTfopt` in front.

    Raises:
        ValueError: If there is no alert of a name.
    """
    alerts = list(alerts)
    known = {alert.name.removeprefix("KerasTfopt") for alert in alerts}
    wanted = {
        name.removeprefix("KerasTfopt"): value
        for name, value in thresholds.items()
    }
    if not set(wanted) <= known:
        raise ValueError(
            "Invalid value for argument `thresholds`. "
            f"Received: {sorted(set(wanted) - known)}. Expected: names among "
            f"{sorted(known)}."
        )
    limits = {
        alert.condition.signal: wanted[name]
        for alert in alerts
        for name in [alert.name.removeprefix("KerasTfopt")]
        if name in wanted
    }
    return [_with_threshold(alert, wanted, limits) for alert in alerts]


def _with_threshold(
    alert: Alert, wanted: dict[str, float], limits: dict[Signal, float]
) -> Alert:
    condition = alert.condition
    threshold = wanted.get(alert.name.removeprefix("KerasTfopt"))
    if threshold is None and condition.signal in limits:
        strongest = max if condition.comparison == ">" else min
        threshold = strongest(condition.threshold, limits[condition.signal])
    if threshold is None:
        return alert
    condition = dataclasses.replace(condition, threshold=float(threshold))
    return dataclasses.replace(alert, condition=condition)


def _holds(condition: Condition, labels: Labels, history: History) -> bool:
    """Whether a condition holds for the series that labels belong to."""
    mine = dict(labels)
    return any(
        condition.holds(value) and all(mine.get(k, v) == v for k, v in others)
        for others, value in condition.signal.measure(history).items()
    )
