"""What the section about monitoring does."""

from collections.abc import Iterator
import functools

from keras_tfopt import callbacks
from keras_tfopt.config.effects import FIT
from keras_tfopt.config.effects import Effect
from keras_tfopt.config.schema import AlertThresholds
from keras_tfopt.config.schema import MonitoringSection

# Keys of the schema, and the alerts of the catalogue that they are about.
_ALERTS = {
    "gpu_memory": "MemoryAlmostFull",
    "fragmentation": "MemoryFragmented",
    "compilation_failure": "XLAFallback",
    "compile_time": "XLACompileTime",
    "communication_overhead": "CommunicationBound",
    "load_imbalance": "Straggler",
    "data_wait": "InputBound",
}


def monitoring_effects(section: MonitoringSection) -> Iterator[Effect]:
    """Yields what a section about monitoring does."""
    if section.metrics_port is not None:
        yield Effect(
            "monitoring.metrics_port",
            FIT,
            "PrometheusExporter at "
            f"http://{section.metrics_addr}:{section.metrics_port}/metrics",
            functools.partial(
                callbacks.PrometheusExporter,
                port=section.metrics_port,
                addr=section.metrics_addr,
            ),
        )
    if section.tensorboard_dir is not None:
        yield Effect(
            "monitoring.tensorboard_dir",
            FIT,
            f"TensorBoardDashboard in {section.tensorboard_dir}",
            functools.partial(
                callbacks.TensorBoardDashboard, section.tensorboard_dir
            ),
        )
    if section.json_lines is not None:
        yield Effect(
            "monitoring.json_lines",
            FIT,
            f"JSONLinesLogger in {section.json_lines}",
            functools.partial(callbacks.JSONLinesLogger, section.json_lines),
        )
    if section.alert_thresholds is not None:
        thresholds = thresholds_of(section.alert_thresholds)
        yield Effect(
            "monitoring.alert_thresholds",
            FIT,
            "AlertNotifier: the alerts of the catalogue, "
            f"{len(thresholds)} with thresholds of yours",
            functools.partial(callbacks.AlertNotifier, thresholds=thresholds),
        )
    if section.gradients_every is not None:
        yield Effect(
            "monitoring.gradients_every",
            FIT,
            f"GradientMonitor: looks every {section.gradients_every} updates",
            functools.partial(
                callbacks.GradientMonitor, section.gradients_every
            ),
            splits=True,
        )
    if section.console:
        yield Effect(
            "monitoring.console",
            FIT,
            "ConsoleLogger: a line under Keras' progress bar",
            callbacks.ConsoleLogger,
        )
    if section.replicas or _judges_replicas(section.alert_thresholds):
        yield Effect(
            "monitoring.replicas",
            FIT,
            "DistributionMonitor: communication and imbalance, where there "
            "are several replicas",
            callbacks.DistributionMonitor,
        )
    if section.summary:
        yield Effect(
            "monitoring.summary",
            FIT,
            "TrainingSummary: a table at the end, where `fit` prints",
            callbacks.TrainingSummary,
        )
    if section.max_slowdown is not None:
        yield Effect(
            "monitoring.max_slowdown",
            FIT,
            "PlanRollback: takes back what makes steps slower by "
            f"{section.max_slowdown:g}",
            functools.partial(callbacks.PlanRollback, section.max_slowdown),
            splits=True,
        )


def _judges_replicas(section: AlertThresholds | None) -> bool:
    """Whether there are alerts that only `DistributionMonitor` has values for.

    Args:
        section: `AlertThresholds` or `None`.
    """
    return section is not None and (
        section.communication_overhead is not None
        or section.load_imbalance is not None
    )


def thresholds_of(section: AlertThresholds) -> dict[str, float]:
    """Returns thresholds by name of the alert.

    Args:
        section: `AlertThresholds`.
    """
    thresholds = {
        _ALERTS[key]: value
        for key, value in section.model_dump(exclude_none=True).items()
    }
    if "XLAFallback" in thresholds:
        # The catalogue counts what went well.
        thresholds["XLAFallback"] = 1 - thresholds["XLAFallback"]
    return thresholds
