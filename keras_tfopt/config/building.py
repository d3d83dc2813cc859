"""What each section of a configuration does."""

from collections.abc import Iterator
import contextlib
import functools
from typing import Any

import keras

from keras_tfopt import callbacks
from keras_tfopt.compilation import allow_clustering_on_cpu
from keras_tfopt.config.effects import FIT
from keras_tfopt.config.effects import PREPARE
from keras_tfopt.config.effects import SCOPE
from keras_tfopt.config.effects import Effect
from keras_tfopt.config.precision import LossScale
from keras_tfopt.config.precision import policy_of
from keras_tfopt.config.precision import policy_scope
from keras_tfopt.config.precision import warn_of_risks
from keras_tfopt.config.schema import CheckpointSection
from keras_tfopt.config.schema import CompilationSection
from keras_tfopt.config.schema import DistributionSection
from keras_tfopt.config.schema import MemorySection
from keras_tfopt.config.schema import MixedPrecision
from keras_tfopt.config.schema import MonitoringSection
from keras_tfopt.config.schema import TrainingConfiguration
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training import AccumModel


def effects_of(configuration: TrainingConfiguration) -> list[Effect]:
    """Returns all that a configuration does, in the order of doing it.

    Args:
        configuration: `TrainingConfiguration`.
    """
    effects: list[Effect] = []
    if configuration.memory:
        effects += _memory(configuration.memory)
    if configuration.compilation:
        effects += _compilation(configuration.compilation)
    if configuration.distribution:
        effects += _distribution(configuration.distribution)
    if configuration.checkpoint:
        effects += _checkpoint(configuration.checkpoint)
    if configuration.monitoring:
        effects += _monitoring(configuration.monitoring)
    return effects


def _compilation(section: CompilationSection) -> Iterator[Effect]:
    # Keras turns XLA on by itself where it can; this turns it off.
    mode = section.mode if section.enabled else "off"
    if mode == "auto_clustering":
        yield Effect(
            "compilation.mode",
            SCOPE,
            "lets TensorFlow cluster for CPUs too",
            _clustering_scope,
        )
    yield Effect(
        "compilation.mode",
        FIT,
        f"XLACompilation(mode={mode!r}): at most {section.max_shapes} "
        "shapes, without XLA where it fails",
        functools.partial(
            callbacks.XLACompilation,
            mode=mode,
            max_shapes=section.max_shapes,
            max_compile_seconds=section.max_compile_seconds,
            dump_dir=section.dump_dir,
        ),
        splits=True,
    )


@contextlib.contextmanager
def _clustering_scope() -> Iterator[None]:
    allow_clustering_on_cpu()
    yield


def _distribution(section: DistributionSection) -> Iterator[Effect]:
    settings = {
        "accumulation_steps": section.accumulation_steps,
        "microbatch_size": section.microbatch_size,
        "gather_steps": section.communication_frequency,
    }
    given: dict[str, Any] = {
        name: value
        for name, value in settings.items()
        if value not in (None, 1)
    }
    if given:
        yield Effect(
            "distribution",
            PREPARE,
            "AccumModel with "
            + ", ".join(f"{name}={value}" for name, value in given.items()),
            functools.partial(_accumulating, settings=given),
            splits=True,
        )


def _accumulating(model: keras.Model, settings: dict[str, Any]) -> keras.Model:
    """Returns a model that accumulates, the same one if it can."""
    if not hasattr(model, "change_plan"):
        return AccumModel.from_model(model, **settings)
    model.change_plan(ExecutionPlan(**settings), "as configured")
    return model


def _memory(section: MemorySection) -> Iterator[Effect]:
    if section.mixed_precision is not None:
        yield from _precision(section.mixed_precision)
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


def _checkpoint(section: CheckpointSection) -> Iterator[Effect]:
    freq = section.every_steps or "epoch"
    if section.every is not None:
        freq = f"{section.every:g}s"
    yield Effect(
        "checkpoint.dir",
        FIT,
        f"BackupAndRestore in {section.dir}, save_freq={freq!r}",
        functools.partial(
            callbacks.BackupAndRestore,
            section.dir,
            save_freq=freq,
            keep=section.keep,
        ),
    )
    if section.non_finite_rollback:
        yield Effect(
            "checkpoint.non_finite_rollback",
            FIT,
            "NonFiniteRollback: refuses steps that are not finite",
            callbacks.NonFiniteRollback,
            splits=True,
        )


def _monitoring(section: MonitoringSection) -> Iterator[Effect]:
    if section.max_slowdown is not None:
        yield Effect(
            "monitoring.max_slowdown",
            FIT,
            "PlanRollback: takes back what makes steps slower by "
            f"{section.max_slowdown:g}",
            functools.partial(callbacks.PlanRollback, section.max_slowdown),
            splits=True,
        )
