"""What is asked for values, again and again, by the sampler."""

from collections.abc import Iterable
import importlib.metadata
import logging
import math
import os
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt._version import __version__
from keras_tfopt.memory.allocator import read_allocator_stats
from keras_tfopt.memory.host import read_host_memory
from keras_tfopt.memory.limit import device_limit_bytes
from keras_tfopt.telemetry.catalogue import CATALOGUE
from keras_tfopt.telemetry.catalogue import metric_named
from keras_tfopt.telemetry.records import Reading
from keras_tfopt.telemetry.store import MetricStore

_logger = logging.getLogger("keras_tfopt")


class AllocatorSource:
    """Reads what the allocators of the local devices count."""

    def __init__(self) -> None:
        count = len(tf.config.list_logical_devices("GPU"))
        names = [f"GPU:{index}" for index in range(count)]
        # Under oneDNN a CPU counts the buffers of oneDNN alone.
        if not names and os.environ.get("TF_CPU_ALLOCATOR_USE_BFC") == "true":
            names = ["CPU:0"]
        self._limits = {name: device_limit_bytes(name) for name in names}

    def metric_readings(self) -> list[Reading]:
        """Returns bytes in use, their peak, and the limit of each device."""
        found = []
        for device, limit in self._limits.items():
            stats = read_allocator_stats(device)
            if stats is None:
                continue
            values: dict[str, float] = {
                "memory_allocated_bytes": stats.current_bytes,
                "memory_allocated_peak_bytes": stats.peak_bytes,
            }
            if limit:
                values["memory_limit_bytes"] = limit
                ratio = stats.peak_bytes / limit
                values["memory_utilization_ratio"] = ratio
            found += [
                Reading(name, value, {"device": device})
                for name, value in values.items()
            ]
        return found


class HostSource:
    """Reads what the process keeps in memory."""

    def metric_readings(self) -> list[Reading]:
        """Returns the resident bytes, if the kernel tells."""
        return [Reading("host_memory_rss_bytes", read_host_memory().rss_bytes)]


def build_info() -> Reading:
    """Returns the versions that a run is made of."""
    labels = {
        "version": __version__,
        "tensorflow": importlib.metadata.version("tensorflow"),
        "keras": keras.__version__,
    }
    return Reading("build_info", 1.0, labels)


def poll(store: MetricStore, sources: Iterable[Any], failed: set[str]) -> None:
    """Asks sources for values and enters them.

    A source that fails is named once in the log, and asked again.

    Args:
        store: `MetricStore`.
        sources: Objects with a method `metric_readings`.
        failed: Set of the names of sources that failed before.
    """
    for source in sources:
        name = type(source).__name__
        try:
            for reading in source.metric_readings():
                _enter(store, reading)
        except Exception as error:
            if name not in failed:
                failed.add(name)
                _logger.warning(
                    "%s gives no values: %s: %s",
                    name,
                    type(error).__name__,
                    error,
                )


def explain_absences(store: MetricStore, known: set[str]) -> None:
    """Logs why metrics have no value.

    Args:
        store: `MetricStore`.
        known: Names of the metrics that have one.
    """
    for metric in CATALOGUE:
        if metric.name not in known:
            store.explain_absence(
                metric.name, f"it comes from {metric.source}, which told none"
            )


def _enter(store: MetricStore, reading: Reading) -> None:
    if metric_named(reading.name).kind != "counter":
        store.set(reading.name, reading.value, **reading.labels)
    elif reading.value is not None and math.isfinite(reading.value):
        store.raise_to(reading.name, reading.value, **reading.labels)
