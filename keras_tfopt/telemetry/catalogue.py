"""Every metric: names, units, meanings and thresholds, in one place."""

from keras_tfopt.telemetry.catalogue_distribution import DISTRIBUTION
from keras_tfopt.telemetry.catalogue_memory import MEMORY
from keras_tfopt.telemetry.catalogue_training import TRAINING
from keras_tfopt.telemetry.catalogue_xla import COMPILATION
from keras_tfopt.telemetry.metric import Alert
from keras_tfopt.telemetry.metric import Curve
from keras_tfopt.telemetry.metric import Metric

CATALOGUE: tuple[Metric, ...] = (
    *TRAINING,
    *MEMORY,
    *COMPILATION,
    *DISTRIBUTION,
)

_BY_NAME = {metric.name: metric for metric in CATALOGUE}


def metric_named(name: str) -> Metric:
    """Returns the metric of a name, without the prefix.

    Args:
        name: String.

    Raises:
        KeyError: If there is none.
    """
    return _BY_NAME[name]


def all_curves() -> tuple[Curve, ...]:
    """Returns what dashboards show, in their order."""
    return tuple(curve for metric in CATALOGUE for curve in metric.curves)


def all_alerts() -> tuple[Alert, ...]:
    """Returns when somebody shall be told."""
    return tuple(alert for metric in CATALOGUE for alert in metric.alerts)
