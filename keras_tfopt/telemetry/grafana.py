"""A dashboard for Grafana, made of the catalogue."""

from collections.abc import Iterator
from typing import Any

from keras_tfopt.telemetry.catalogue import CATALOGUE
from keras_tfopt.telemetry.metric import Alert
from keras_tfopt.telemetry.metric import Curve
from keras_tfopt.telemetry.metric import Metric

DATASOURCE_UID = "keras_tfopt_prometheus"
_DATASOURCE = {"type": "prometheus", "uid": DATASOURCE_UID}
_UNITS = {"bytes": "bytes", "seconds": "s", "ratio": "percentunit", "": "short"}
# A dashboard is 24 wide.
_WIDTH, _HEIGHT = 8, 7


def dashboard() -> dict[str, Any]:
    """Returns the dashboard, with a row for each group of curves."""
    return {
        "uid": "keras_tfopt",
        "title": "keras_tfopt",
        "tags": ["keras_tfopt"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "panels": list(_panels()),
    }


def _panels() -> Iterator[dict[str, Any]]:
    groups: dict[str, list[tuple[Metric, Curve]]] = {}
    for metric in CATALOGUE:
        for curve in metric.curves:
            groups.setdefault(curve.group, []).append((metric, curve))
    identifier = top = 0
    for group, entries in groups.items():
        identifier += 1
        yield {
            "id": identifier,
            "type": "row",
            "title": group,
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": 24, "h": 1},
            "panels": [],
        }
        top += 1
        for index, (metric, curve) in enumerate(entries):
            identifier += 1
            row, column = divmod(index, 24 // _WIDTH)
            position = {
                "x": column * _WIDTH,
                "y": top + row * _HEIGHT,
                "w": _WIDTH,
                "h": _HEIGHT,
            }
            yield _panel(identifier, metric, curve, position)
        top += -(-len(entries) // (24 // _WIDTH)) * _HEIGHT


def _panel(
    identifier: int, metric: Metric, curve: Curve, position: dict[str, int]
) -> dict[str, Any]:
    labels = ["instance", *metric.labels]
    return {
        "id": identifier,
        "type": "timeseries",
        "title": curve.tag.partition("/")[2].replace("_", " "),
        "description": metric.help,
        "datasource": _DATASOURCE,
        "gridPos": position,
        "targets": [
            {
                "refId": "A",
                "datasource": _DATASOURCE,
                "expr": curve.signal.promql,
                "legendFormat": " ".join(f"{{{{{name}}}}}" for name in labels),
            }
        ],
        "fieldConfig": {
            "defaults": {
                "unit": _UNITS[curve.unit],
                "custom": {"thresholdsStyle": {"mode": "line"}},
                "thresholds": {
                    "mode": "absolute",
                    "steps": _steps(metric.alerts, curve),
                },
            },
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
    }


def _steps(alerts: tuple[Alert, ...], curve: Curve) -> list[dict[str, Any]]:
    """Returns the thresholds of the alerts that judge what a curve shows."""
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    for alert in alerts:
        condition = alert.condition
        if condition.signal != curve.signal:
            continue
        if condition.comparison == ">":
            steps.append({"color": "red", "value": condition.threshold})
        else:
            steps[0]["color"] = "red"
            steps.append({"color": "green", "value": condition.threshold})
    return steps
