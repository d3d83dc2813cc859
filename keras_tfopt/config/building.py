"""What each section of a configuration does."""

from collections.abc import Iterator
import contextlib
import dataclasses
import functools
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt import callbacks
from keras_tfopt import distribution
from keras_tfopt.compilation import allow_clustering_on_cpu
from keras_tfopt.config.building_memory import memory_effects
from keras_tfopt.config.building_memory import swap_effects
from keras_tfopt.config.building_memory import swapping_of
from keras_tfopt.config.building_monitoring import monitoring_effects
from keras_tfopt.config.effects import FIT
from keras_tfopt.config.effects import PREPARE
from keras_tfopt.config.effects import SCOPE
from keras_tfopt.config.effects import Effect
from keras_tfopt.config.schema import CheckpointSection
from keras_tfopt.config.schema import CompilationSection
from keras_tfopt.config.schema import DistributionSection
from keras_tfopt.config.schema import MemorySection
from keras_tfopt.config.schema import TrainingConfiguration
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training import AccumModel
from keras_tfopt.training.remat import segment_length


def effects_of(configuration: TrainingConfiguration) -> list[Effect]:
    """Returns all that a configuration does, in the order of doing it.

    Args:
        configuration: `TrainingConfiguration`.
    """
    sections = configuration
    effects: list[Effect] = []
    swapping = None
    if sections.memory:
        swapping = swapping_of(sections.memory)
        effects += memory_effects(sections.memory, swapping)
    if sections.compilation:
        effects += _compilation(sections.compilation)
    if sections.distribution:
        effects += _distribution(sections.distribution)
    effects += _plan(sections)
    if sections.memory:
        # Of the model that is trained, which the plan may have made.
        effects += swap_effects(sections.memory, swapping)
    if sections.data and sections.data.monitor:
        effects.append(
            Effect(
                "data.monitor",
                FIT,
                "InputPipelineMonitor: warns when steps wait for data",
                callbacks.InputPipelineMonitor,
            )
        )
    if sections.checkpoint:
        effects += _checkpoint(sections.checkpoint)
    if sections.monitoring:
        effects += monitoring_effects(sections.monitoring)
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
            on_new_shape=section.on_new_shape,
            dump_dir=section.dump_dir,
        ),
        splits=True,
    )


@contextlib.contextmanager
def _clustering_scope() -> Iterator[None]:
    allow_clustering_on_cpu()
    yield


def _distribution(section: DistributionSection) -> Iterator[Effect]:
    if section.strategy is not None:
        yield Effect(
            "distribution.strategy",
            SCOPE,
            f"the strategy {section.strategy!r}, which explains its choice",
            functools.partial(_strategy_scope, section),
        )


def _plan(configuration: TrainingConfiguration) -> Iterator[Effect]:
    section = configuration.distribution or DistributionSection()
    memory = configuration.memory or MemorySection()
    settings = {
        "accumulation_steps": section.accumulation_steps,
        "microbatch_size": section.microbatch_size,
        "gather_steps": section.communication_frequency,
        "remat": memory.checkpoint_gradients,
    }
    keys = {
        "gather_steps": "distribution.communication_frequency",
        "remat": "memory.checkpoint_gradients",
    }
    # One of each is what a model does anyway; `remat=1` is not.
    given = {
        name: value
        for name, value in settings.items()
        if value is not None and (value != 1 or name == "remat")
    }
    if given:
        yield Effect(
            ", ".join(keys.get(name, f"distribution.{name}") for name in given),
            PREPARE,
            "AccumModel with "
            + ", ".join(f"{name}={value}" for name, value in given.items()),
            functools.partial(_planned, settings=given),
            splits=True,
        )
    if memory.offload is not None:
        has_gpu = bool(tf.config.list_physical_devices("GPU"))
        yield Effect(
            "memory.offload",
            PREPARE,
            f"{', '.join(memory.offload)} in the memory of the host",
            functools.partial(_planned, settings={"offload": memory.offload}),
            None if has_gpu else "there is no memory but the host's",
            splits=True,
        )


def _strategy_scope(
    section: DistributionSection,
) -> contextlib.AbstractContextManager:
    return distribution.strategy(
        section.strategy or "auto",
        communication=section.communication or "auto",
        cross_device_ops=section.cross_device_ops,
    ).scope()


def _planned(model: keras.Model, settings: dict[str, Any]) -> keras.Model:
    """Returns a model with a plan, the same one if it can have it."""
    if settings.get("remat") == "auto":
        settings = {**settings, "remat": segment_length(model)}
    if not hasattr(model, "change_plan"):
        return AccumModel.from_model(model, **settings)
    plan = model.plan
    if {"accumulation_steps", "microbatch_size"} & settings.keys():
        # They exclude each other.
        plan = model.plan.split_like(ExecutionPlan())
    plan = dataclasses.replace(plan, **settings)
    model.change_plan(plan, "as configured")
    return model


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
