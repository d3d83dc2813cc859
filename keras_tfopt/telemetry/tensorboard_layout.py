"""The dashboard that comes with the logs of TensorBoard."""

import re
from typing import Any

from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import summary

from keras_tfopt.telemetry.catalogue import all_curves
from keras_tfopt.telemetry.metric import TAG_PREFIX
from keras_tfopt.telemetry.metric import Curve

_LOW, _HIGH = "_p05", "_p95"

_TITLES = {
    "train": "Training",
    "memory": "Memory",
    "optimizer": "Gradients and updates",
    "xla": "XLA",
    "distribute": "Replicas",
    "backup": "Backups",
    "telemetry": "Cost of telemetry",
}
# What is in no catalogue, since its names are those of the model: patterns
# behind the group.
_OF_THE_MODEL = {
    "train": {
        "loss, at the ends of epochs": "epoch/(val_)?loss",
        "metrics, at the ends of epochs": "epoch/(?!(val_)?loss$).*",
    },
    "optimizer": {
        "gradient norm of layers": "optimizer/layer_gradient_norm/.*",
        "update ratio of layers": "optimizer/layer_update_ratio/.*",
    },
}


def layout_summary() -> Any:
    """Returns the layout of the custom scalars: a category for each group."""
    groups: dict[str, list[Curve]] = {group: [] for group in _TITLES}
    for curve in all_curves():
        groups[curve.group].append(curve)
    categories = [
        layout_pb2.Category(
            title=_TITLES[group],
            chart=[*_charts_of_the_model(group), *_charts(curves)],
        )
        for group, curves in groups.items()
    ]
    return summary.pb(layout_pb2.Layout(category=categories))


def _charts(curves: list[Curve]) -> list[Any]:
    tags = {curve.tag for curve in curves}
    # What is in a chart of several tags, by its title.
    shared: dict[str, list[str]] = {}
    charts = []
    for curve in curves:
        tag = curve.tag
        if tag.endswith((_LOW, _HIGH)):
            # They are the margins of another curve.
            continue
        title = curve.chart or tag.partition("/")[2].replace("_", " ")
        if tag + _LOW in tags and tag + _HIGH in tags:
            charts.append(_margin_chart(title, tag))
            continue
        if title not in shared:
            shared[title] = []
            charts.append(title)
        # One line for each device, or other label.
        shared[title].append(f"{re.escape(tag)}(/.*)?")
    return [
        _line_chart(chart, shared[chart]) if isinstance(chart, str) else chart
        for chart in charts
    ]


def _charts_of_the_model(group: str) -> list[Any]:
    return [
        _line_chart(title, [pattern])
        for title, pattern in _OF_THE_MODEL.get(group, {}).items()
    ]


def _line_chart(title: str, patterns: list[str]) -> Any:
    tags = [f"^{re.escape(TAG_PREFIX)}{pattern}$" for pattern in patterns]
    lines = layout_pb2.MultilineChartContent(tag=tags)
    return layout_pb2.Chart(title=title, multiline=lines)


def _margin_chart(title: str, tag: str) -> Any:
    series = layout_pb2.MarginChartContent.Series(
        value=TAG_PREFIX + tag,
        lower=TAG_PREFIX + tag + _LOW,
        upper=TAG_PREFIX + tag + _HIGH,
    )
    margin = layout_pb2.MarginChartContent(series=[series])
    return layout_pb2.Chart(title=title, margin=margin)
