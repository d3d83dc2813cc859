"""The keys of a configuration, and what each may hold."""

from typing import Annotated
from typing import Any
from typing import Literal

import pydantic

from keras_tfopt.config.presets import with_preset
from keras_tfopt.config.quantities import Bytes
from keras_tfopt.config.quantities import Ratio
from keras_tfopt.config.quantities import Seconds
from keras_tfopt.config.quantities import parse_switch

Count = Annotated[int, pydantic.Field(ge=1, strict=True)]
Switch = Annotated[bool, pydantic.Field(strict=True)]


class _Section(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True
    )


class CompilationSection(_Section):
    """XLA."""

    enabled: Switch = True
    """Whether this section counts."""
    mode: Annotated[
        Literal["on", "off", "auto", "auto_clustering"],
        pydantic.BeforeValidator(parse_switch),
    ] = "auto"
    """`auto` measures and keeps what is faster."""
    max_shapes: Count = 100
    """Most shapes of batches to compile for."""
    max_compile_seconds: Seconds | None = 600.0
    """Most time to spend on compiling."""
    on_new_shape: Literal["compile", "pad", "fallback"] = "compile"
    """`pad` lets batches of other numbers of rows share what was compiled."""
    dump_dir: str | None = None
    """Folder for what XLA made of the steps."""


class DistributionSection(_Section):
    """Devices, and how a batch is split and gathered."""

    strategy: str | None = None
    """A name that `keras_tfopt.distribution.strategy` takes."""
    communication: str | None = None
    """`auto`, `ring` or `nccl`."""
    cross_device_ops: str | None = None
    """How replicas in one process reduce."""
    accumulation_steps: Count | None = None
    """Micro-batches of a batch."""
    microbatch_size: Count | None = None
    """Rows of a micro-batch; excludes `accumulation_steps`."""
    communication_frequency: Count = 1
    """Batches that are gathered for one update, and one all-reduce."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "DistributionSection":
        if self.accumulation_steps and self.microbatch_size:
            raise ValueError(
                "expected one of accumulation_steps and microbatch_size"
            )
        if self.strategy is None and (
            self.communication or self.cross_device_ops
        ):
            raise ValueError(
                "expected a strategy, such as 'auto', beside communication "
                "and cross_device_ops"
            )
        return self


class MixedPrecision(_Section):
    """Data types of computation and of variables."""

    compute_dtype: Literal["float16", "bfloat16", "float32"] | None = None
    """Defaults to what the device computes fastest."""
    variable_dtype: Literal["float32"] = "float32"
    """Weights stay in float32; Keras has no mixed policy with others."""
    loss_scale: Literal["dynamic"] | Annotated[float, pydantic.Field(gt=0)] = (
        "dynamic"
    )
    """First scale of the loss in float16, which then adapts."""


def _mixed_precision(value: object) -> object:
    if isinstance(value, bool):
        return {} if value else None
    return value


def _segment(value: object) -> object:
    if isinstance(value, bool):
        return "auto" if value else None
    return value


def _names(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class MemorySection(_Section):
    """What training may take, and what it does when that is not enough."""

    growth_enabled: Switch | None = None
    """Whether a GPU's memory is taken as needed, instead of all at once."""
    limit: Bytes | None = None
    """Most that TensorFlow may take of each GPU."""
    allocator: Literal["default", "cuda_malloc_async"] = "default"
    """GPU allocator."""
    max_gpu_utilization: Ratio = 0.85
    """Share of the limit that the watchdog and the planner allow."""
    out_of_memory_recovery: Switch = True
    """Whether a step that does not fit runs again in smaller micro-batches."""
    plan_ahead: Switch = False
    """Whether the micro-batch is found by probes before the first step."""
    fragmentation_check_interval: Count | None = None
    """Steps between two looks at the allocator's fragmentation."""
    leak_detection: Switch = False
    """Whether growth over epochs is reported."""
    mixed_precision: Annotated[
        MixedPrecision | None,
        pydantic.BeforeValidator(
            _mixed_precision, json_schema_input_type=bool | MixedPrecision
        ),
    ] = None
    """`true` takes what the device computes fastest."""
    checkpoint_gradients: Annotated[
        Literal["auto"] | Count | None,
        pydantic.BeforeValidator(_segment, json_schema_input_type=bool | Count),
    ] = None
    """Whether the backward pass computes activations again, and how many
    layers make a segment; `true` takes the root of the number of layers."""
    offload: Annotated[
        tuple[Literal["activations", "slots", "frozen_weights"], ...] | None,
        pydantic.BeforeValidator(
            _names, json_schema_input_type=str | tuple[str, ...]
        ),
    ] = None
    """What a GPU leaves to the memory of the host: `activations` that are kept
    for what is computed again, optimizer `slots`, `frozen_weights`. The first
    and the last need `checkpoint_gradients`."""
    swap_threshold_mb: Annotated[float, pydantic.Field(gt=0)] | None = None
    """Variables that are not in use go to the host when more than this many
    MiB are on the device."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "MemorySection":
        if self.growth_enabled and self.limit is not None:
            raise ValueError(
                "expected one of growth_enabled and limit; TensorFlow takes "
                "no limit for memory that grows"
            )
        if self.offload is not None:
            is_streamed = self.offload != ("slots",)
            if not self.offload or (is_streamed and not self.remat_is_set):
                raise ValueError(
                    "expected checkpoint_gradients beside offload, or offload: "
                    "slots"
                )
        return self

    @property
    def remat_is_set(self) -> bool:
        """Whether anything is computed again."""
        return self.checkpoint_gradients is not None


class DataSection(_Section):
    """The input pipeline."""

    monitor: Switch = True
    """Whether the time that steps wait for data is watched."""


class CheckpointSection(_Section):
    """Backups, and what becomes of steps that are not finite."""

    dir: str
    """Folder for the backups of this run alone."""
    every_steps: Count | None = None
    """Batches between two backups."""
    every: Seconds | None = None
    """Time between two backups, such as `10m`."""
    keep: Count = 2
    """How many stay."""
    non_finite_rollback: Switch = True
    """Whether steps that are not finite are refused."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "CheckpointSection":
        if self.every_steps and self.every:
            raise ValueError("expected one of every_steps and every")
        return self


class AlertThresholds(_Section):
    """Shares beyond which an alert is raised."""

    gpu_memory: Ratio | None = None
    """Peak in the limit of the allocator."""
    fragmentation: Ratio | None = None
    """Free memory outside of the largest free block."""
    compilation_failure: Ratio | None = None
    """Failures in XLA's compilations."""
    compile_time: Ratio | None = None
    """Compiling in the time of training."""
    communication_overhead: Ratio | None = None
    """Collectives in the time of a step."""
    load_imbalance: Ratio | None = None
    """What the slowest replica takes longer than the mean."""
    data_wait: Ratio | None = None
    """Waiting for data in the time of training."""


class MonitoringSection(_Section):
    """Where the figures go."""

    metrics_port: (
        Annotated[int, pydantic.Field(ge=0, le=65535, strict=True)] | None
    ) = None
    """Port for Prometheus; 0 takes a free one."""
    metrics_addr: str = "127.0.0.1"
    """Address for Prometheus."""
    tensorboard_dir: str | None = None
    """Folder for TensorBoard."""
    json_lines: str | None = None
    """File for a log of JSON lines."""
    console: Switch = False
    """Whether a line under Keras' progress bar tells what is known."""
    replicas: Switch = False
    """Whether communication and imbalance of replicas are measured; alerts
    about them turn it on."""
    summary: Switch = True
    """Whether a table at the end of `fit` tells what happened."""
    max_slowdown: Annotated[float, pydantic.Field(ge=1)] | None = None
    """A change of plan that makes steps slower by this factor is taken back."""
    gradients_every: Count | None = None
    """Steps between two looks at the gradients."""
    alert_thresholds: AlertThresholds | None = None
    """Shares beyond which an alert is raised."""


def _filled(section: Any) -> Any:
    """A section that stands there without keys has its defaults."""
    return {} if section is None else section


_Filled = pydantic.BeforeValidator(_filled)


class TrainingConfiguration(_Section):
    """What stands under `tensorflow_optimization`."""

    preset: Literal["small", "medium", "large", "stable"] | None = None
    """Values to start from."""
    compilation: Annotated[CompilationSection | None, _Filled] = None
    """XLA."""
    distribution: Annotated[DistributionSection | None, _Filled] = None
    """Devices, and how a batch is split and gathered."""
    memory: Annotated[MemorySection | None, _Filled] = None
    """What training may take, and what it does when that is not enough."""
    data: Annotated[DataSection | None, _Filled] = None
    """The input pipeline."""
    checkpoint: Annotated[CheckpointSection | None, _Filled] = None
    """Backups, and what becomes of steps that are not finite."""
    monitoring: Annotated[MonitoringSection | None, _Filled] = None
    """Where the figures go."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _start_from_preset(cls, data: Any) -> Any:
        return with_preset(data)


class Configuration(_Section):
    """The file: one key, so that others may stand beside it."""

    tensorflow_optimization: TrainingConfiguration
    """What keras_tfopt shall do."""
