"""What the section about memory does."""

from collections.abc import Iterator
import contextlib
import functools

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


def memory_effects(section: MemorySection) -> Iterator[Effect]:
    """Yields what a section about memory does, apart from the plan."""
    if section.mixed_precision is not None:
        yield from _precision(section.mixed_precision)
    yield Effect(
        "memory.max_gpu_utilization",
        FIT,
        f"MemoryWatchdog: warns beyond {section.max_gpu_utilization:.0%}",
        functools.partial(
            callbacks.MemoryWatchdog, section.max_gpu_utilization
        ),
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
