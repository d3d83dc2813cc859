"""What the section about memory does."""

from collections.abc import Iterator
import contextlib
import functools
import os
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt import callbacks
from keras_tfopt.config.effects import FIT
from keras_tfopt.config.effects import PREPARE
from keras_tfopt.config.effects import SCOPE
from keras_tfopt.config.effects import Effect
from keras_tfopt.config.precision import LossScale
from keras_tfopt.config.precision import policy_of
from keras_tfopt.config.precision import policy_scope
from keras_tfopt.config.precision import warn_of_risks
from keras_tfopt.config.schema import MemorySection
from keras_tfopt.config.schema import MixedPrecision
from keras_tfopt.memory.settings import MemorySettings
from keras_tfopt.memory.swap import SwapManager

_MIB = 2**20


def memory_effects(
    section: MemorySection, swapping: "Swapping | None"
) -> Iterator[Effect]:
    """Yields what a section about memory does, apart from the plan.

    Args:
        section: `MemorySection`.
        swapping: What lets models take turns, which the watchdog can stop.
    """
    yield from _settings(section)
    if section.mixed_precision is not None:
        yield from _precision(section.mixed_precision)
    yield Effect(
        "memory.max_gpu_utilization",
        FIT,
        f"MemoryWatchdog: warns beyond {section.max_gpu_utilization:.0%}",
        functools.partial(_watchdog, section.max_gpu_utilization, swapping),
    )
    if section.fragmentation_check_interval is not None:
        yield Effect(
            "memory.fragmentation_check_interval",
            FIT,
            "FragmentationMonitor: looks every "
            f"{section.fragmentation_check_interval} steps",
            functools.partial(
                callbacks.FragmentationMonitor,
                section.fragmentation_check_interval,
            ),
        )
    if section.leak_detection:
        yield Effect(
            "memory.leak_detection",
            FIT,
            "LeakDetector: reports what grows from epoch to epoch",
            callbacks.LeakDetector,
        )
    if section.out_of_memory_recovery:
        yield Effect(
            "memory.out_of_memory_recovery",
            FIT,
            "OOMRecovery: smaller micro-batches, the same effective batch",
            functools.partial(
                callbacks.OOMRecovery,
                plan_ahead=section.plan_ahead,
                max_utilization=section.max_gpu_utilization,
            ),
            splits=True,
        )


def _settings(section: MemorySection) -> Iterator[Effect]:
    """Yields what TensorFlow takes only before it starts its devices."""
    allocator = section.allocator
    settings = {
        "growth_enabled": ("memory_growth", section.growth_enabled),
        "limit": ("limit_bytes", section.limit),
        "allocator": (
            "gpu_allocator",
            None if allocator == "default" else allocator,
        ),
    }
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    for key, (name, value) in settings.items():
        if value is not None:
            needs_gpu = key != "limit" and not has_gpu
            yield Effect(
                f"memory.{key}",
                SCOPE,
                f"{name}={value}, before devices start",
                functools.partial(_settings_scope, **{name: value}),
                "there is no GPU" if needs_gpu else None,
            )


@contextlib.contextmanager
def _settings_scope(**settings: Any) -> Iterator[None]:
    MemorySettings(**settings).apply()
    yield


def _watchdog(
    max_utilization: float, swapping: "Swapping | None"
) -> callbacks.MemoryWatchdog:
    manager = None if swapping is None else swapping.manager
    return callbacks.MemoryWatchdog(max_utilization, swap_manager=manager)


def swapping_of(section: MemorySection) -> "Swapping | None":
    """Returns what lets models take turns on the device, if anything does."""
    if section.swap_threshold_mb is None:
        return None
    return Swapping(int(section.swap_threshold_mb * _MIB))


def swap_effects(
    section: MemorySection, swapping: "Swapping | None"
) -> Iterator[Effect]:
    """Yields what lets models take turns on the device.

    Args:
        section: `MemorySection`.
        swapping: What `swapping_of` returned.
    """
    if swapping is None:
        return
    counts = (
        section.limit is not None
        or bool(tf.config.list_physical_devices("GPU"))
        or os.environ.get("TF_CPU_ALLOCATOR_USE_BFC") == "true"
    )
    yield Effect(
        "memory.swap_threshold_mb",
        PREPARE,
        "SwapManager: models that are prepared take turns on the device "
        f"beyond {section.swap_threshold_mb:g} MiB",
        swapping,
        None if counts else "the allocator of this CPU counts nothing",
    )


class Swapping:
    """Lets the models that are prepared take turns on the device.

    Args:
        threshold_bytes: Integer. As for `SwapManager`.

    Attributes:
        manager: `SwapManager`, or `None` before the first model.
    """

    def __init__(self, threshold_bytes: int) -> None:
        self._threshold_bytes = threshold_bytes
        self.manager: SwapManager | None = None

    def __call__(self, model: keras.Model) -> keras.Model:
        """Adds a model and returns it."""
        if self.manager is None:
            self.manager = SwapManager(
                swap_threshold_bytes=self._threshold_bytes
            )
        self.manager.add(model.name, model)
        return model


def _precision(section: MixedPrecision) -> Iterator[Effect]:
    key = "memory.mixed_precision"
    policy, reason = policy_of(section)
    if policy is None:
        text = "layers compute in half precision"
        yield Effect(key, SCOPE, text, contextlib.nullcontext, reason)
        return
    yield Effect(
        key,
        SCOPE,
        f"layers compute under the policy {policy} ({reason})",
        functools.partial(policy_scope, policy),
    )
    yield Effect(
        key, PREPARE, "reports outputs that need float32", warn_of_risks
    )
    if policy == "mixed_float16" and section.loss_scale != "dynamic":
        yield Effect(
            key,
            FIT,
            f"the first loss scale is {section.loss_scale:g}",
            functools.partial(LossScale, section.loss_scale),
        )
