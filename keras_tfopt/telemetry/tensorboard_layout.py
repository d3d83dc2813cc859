"""The dashboard that comes with the logs of TensorBoard."""

import re
from typing import Any

from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import summary

from keras_tfopt.telemetry.catalogue import all_curves
from keras_tfopt.telemetry.metric import TAG_PREFIX
from keras_tfopt.telemetry.metric import Curve

_LOW, _HIGH = "_p05", "_p95"


def layout_summary() -> Any:
    """Returns the layout of the custom scalars: a category for each group."""
    groups: dict[str, list[Curve]] = {}
    for curve in all_curves():
        groups.setdefault(curve.group, []).append(curve)
    categories = [
        layout_pb2.Category(title=group, chart=_charts(curves))
        for group, curves in groups.items()
    ]
    return summary.pb(layout_pb2.Layout(category=categories))


def _charts(curves: list[Curve]) -> list[Any]:
    tags = {curve.tag for curve in curves}
    charts = []
    for curve in curves:
        tag = curve.tag
        if tag.endswith((_LOW, _HIGH)):
            # They are the margins of another curve.
            continue
        title = tag.partition("/")[2].replace("_", " ")
        if tag + _LOW in tags and tag + _HIGH in tags:
            series = layout_pb2.MarginChartContent.Series(
                value=TAG_PREFIX + tag,
                lower=TAG_PREFIX + tag + _LOW,
                upper=TAG_PREFIX + tag + _HIGH,
            )
            margin = layout_pb2.MarginChartContent(series=[series])
            charts.append(layout_pb2.Chart(title=title, margin=margin))
            continue
        # One line for each device, or other label.
        pattern = f"^{re.escape(TAG_PREFIX + tag)}(/.*)?$"
        lines = layout_pb2.MultilineChartContent(tag=[pattern])
        charts.append(layout_pb2.Chart(title=title, multiline=lines))
    return charts
