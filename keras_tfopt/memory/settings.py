"""What TensorFlow must be told about memory before it starts its devices."""

from collections.abc import Mapping
import dataclasses
import logging
import numbers
import os
from typing import Any

import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.memory.allocator import read_allocator_stats
from keras_tfopt.memory.device_setting import Setting
from keras_tfopt.memory.device_setting import device_settings
from keras_tfopt.memory.device_setting import environment_setting
from keras_tfopt.memory.device_setting import thread_settings
from keras_tfopt.plan import check_positive_integer

_logger = logging.getLogger("keras_tfopt")
_MIB = 2**20

GPU_ALLOCATORS = ("bfc", "cuda_malloc_async")
CPU_ALLOCATORS = ("default", "bfc")


@dataclasses.dataclass(frozen=True)
class MemorySettings:
    """How TensorFlow takes memory from devices and host.

    TensorFlow takes such settings only before it starts its devices, with the
    first operation, and it says little when they come too late. `apply` refuses
    then, and reads back what it has set. Settings that are `None` stay as they
    are.

    Example:

    ```python
    from keras_tfopt.memory import MemorySettings

    settings = MemorySettings(memory_growth=True, inter_op_threads=2)
    try:
        settings.apply()
    except RuntimeError as error:
        print(error)    # something has run on a device before
    ```

    Args:
        memory_growth: Boolean or `None`. Whether TensorFlow takes memory of
            GPUs as it needs it, instead of nearly all at once. Defaults to
            `None`.
        limit_bytes: Integer, dict or `None`. What it may take of each GPU, or
            of the CPU where there is none; or a dict from names such as
            `"GPU:1"` and `"CPU:0"` to that. In whole MiB. Defaults to `None`.
        logical_devices: Dict or `None`. Number of logical devices that a
            device such as `"GPU:0"` is divided into. Those of a GPU share its
            limit in equal parts, which TensorFlow needs to know. Defaults to
            `None`.
        gpu_allocator: `"bfc"`, TensorFlow's own, `"cuda_malloc_async"`, which
            suffers less from fragmentation, or `None`. Defaults to `None`.
        cpu_allocator: `"default"`, `"bfc"`, which counts and can be limited, or
            `None`. A limit of a CPU means `"bfc"`. Defaults to `None`.
        pinned_limit_bytes: Integer or `None`. Most memory of the host to pin
            for copies to GPUs. In whole MiB. Defaults to `None`.
        inter_op_threads: Integer or `None`. Operations that run side by side on
            a CPU; fewer of them need less memory. Defaults to `None`.
        intra_op_threads: Integer or `None`. Threads of one operation. Defaults
            to `None`.

    Raises:
        ValueError: If an argument is out of range, or if two exclude each
            other.
    """

    memory_growth: bool | None = None
    limit_bytes: int | Mapping[str, int] | None = None
    logical_devices: Mapping[str, int] | None = None
    gpu_allocator: str | None = None
    cpu_allocator: str | None = None
    pinned_limit_bytes: int | None = None
    inter_op_threads: int | None = None
    intra_op_threads: int | None = None

    def __post_init__(self) -> None:
        _check_boolean("memory_growth", self.memory_growth)
        _check_choice("gpu_allocator", self.gpu_allocator, GPU_ALLOCATORS)
        _check_choice("cpu_allocator", self.cpu_allocator, CPU_ALLOCATORS)
        for name in ("inter_op_threads", "intra_op_threads"):
            check_positive_integer(name, getattr(self, name))
        _check_mebibytes("pinned_limit_bytes", self.pinned_limit_bytes)
        limits = self.limit_bytes
        by_device = limits if isinstance(limits, Mapping) else {"all": limits}
        for device, limit in by_device.items():
            _check_mebibytes(f"limit_bytes[{device!r}]", limit)
        for device, count in (self.logical_devices or {}).items():
            check_positive_integer(f"logical_devices[{device!r}]", count)
        self._check_conflicts()

    def apply(self) -> None:
        """Puts the settings in force, and reads them back.

        What is in force already may be applied again at any time.

        Raises:
            RuntimeError: If TensorFlow has started its devices otherwise, or
                if it does not take a setting.
            ValueError: If a device is named that is not there, or if the
                environment of the process says otherwise.
        """
        self._check_environment()
        settings = self._settings()
        pending = [s for s in settings if s.read() != s.wanted]
        if pending and _compat.is_started():
            raise RuntimeError(
                "TensorFlow has started its devices already, with the first "
                "operation or query of logical devices. Received: "
                f"{_describe(pending)} after that. Expected: this call before "
                "that, at the start of the program."
            )
        for setting in pending:
            setting.write(setting.wanted)
        refused = [s for s in pending if s.read() != s.wanted]
        if refused:
            raise RuntimeError(
                "TensorFlow does not take a setting. Received: "
                f"{_describe(refused)}. Expected: "
                f"{', '.join(f'{s.name}={s.read()!r}' for s in refused)}, "
                "which is what it says to be in force."
            )

    def check_devices(self) -> None:
        """Starts TensorFlow's devices, and compares them with the settings.

        Raises:
            RuntimeError: If a device is not as it should be.
        """
        self.apply()
        names = [d.name for d in tf.config.list_logical_devices()]
        for device, count in (self.logical_devices or {}).items():
            kind = device.partition(":")[0]
            found = sum(f":{kind}:" in name for name in names)
            if found < count:
                raise RuntimeError(
                    f"TensorFlow has {found} devices of the kind {kind}. "
                    f"Received: logical_devices={self.logical_devices}. "
                    f"Expected: at least {count} of them."
                )
        if self._counts_cpu(names) and read_allocator_stats("CPU:0") is None:
            raise RuntimeError(
                "The CPU does not count. Received: cpu_allocator='bfc', set "
                "after TensorFlow had read its environment. Expected: "
                "`apply()` before that."
            )

    def _settings(self) -> list[Setting]:
        """Returns everything that is to be set, as it can be read and set."""
        devices = tf.config.list_physical_devices()
        gpus = [d for d in devices if d.device_type == "GPU"]
        if not gpus:
            self._say_what_is_for_gpus()
        limits = self._limits([f"GPU:{index}" for index in range(len(gpus))])
        variables = self._variables(limits.pop("CPU:0", None))
        return [
            *device_settings(
                devices, self.memory_growth, limits, self.logical_devices or {}
            ),
            *thread_settings(self.inter_op_threads, self.intra_op_threads),
            *(environment_setting(*item) for item in variables.items()),
        ]

    def _variables(self, cpu_limit: int | None) -> dict[str, str | None]:
        """Returns what has to stand in the environment; `None` is unset."""
        variables: dict[str, str | None] = {}
        if self.cpu_allocator is not None or cpu_limit is not None:
            is_default = self.cpu_allocator == "default"
            variables["TF_CPU_ALLOCATOR_USE_BFC"] = (
                None if is_default else "true"
            )
        if cpu_limit is not None:
            self._check_limits_cpu()
            limit = str(cpu_limit // _MIB)
            variables["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = limit
        if self.gpu_allocator is not None:
            is_own = self.gpu_allocator == "bfc"
            variables["TF_GPU_ALLOCATOR"] = (
                None if is_own else self.gpu_allocator
            )
        if self.pinned_limit_bytes is not None:
            limit = str(self.pinned_limit_bytes // _MIB)
            variables["TF_GPU_HOST_MEM_LIMIT_IN_MB"] = limit
        return variables

    def _limits(self, gpus: list[str]) -> dict[str, int]:
        """Returns the limits of devices by their names."""
        if self.limit_bytes is None:
            return {}
        if isinstance(self.limit_bytes, Mapping):
            return dict(self.limit_bytes)
        return dict.fromkeys(gpus or ["CPU:0"], self.limit_bytes)

    def _counts_cpu(self, names: list[str]) -> bool:
        has_gpu = any(":GPU:" in name for name in names)
        limits = self._limits(["GPU:0"] if has_gpu else [])
        return self.cpu_allocator == "bfc" or "CPU:0" in limits

    def _say_what_is_for_gpus(self) -> None:
        for name in ("memory_growth", "gpu_allocator", "pinned_limit_bytes"):
            if getattr(self, name) is not None:
                _logger.info(
                    "%s=%r has no effect: TensorFlow sees no GPU.",
                    name,
                    getattr(self, name),
                )

    def _check_conflicts(self) -> None:
        limits = self.limit_bytes
        by_name = limits if isinstance(limits, Mapping) else {}
        limits_gpus = isinstance(limits, numbers.Integral) or any(
            name.startswith("GPU") for name in by_name
        )
        if self.memory_growth and limits_gpus:
            raise ValueError(
                "TensorFlow takes all of what a limit allows at once. "
                f"Received: memory_growth=True, limit_bytes={limits!r}. "
                "Expected: one of them."
            )
        for device in self.logical_devices or {}:
            is_limited = isinstance(limits, numbers.Integral) or (
                device in by_name
            )
            if device.startswith("GPU") and not is_limited:
                raise ValueError(
                    "TensorFlow divides a GPU by limits. Received: "
                    f"logical_devices={self.logical_devices!r} without a limit "
                    f"of {device}. Expected: its `limit_bytes` as well."
                )
        if "CPU:0" in by_name:
            self._check_limits_cpu()

    def _check_limits_cpu(self) -> None:
        if self.cpu_allocator == "default":
            raise ValueError(
                "Only the allocator 'bfc' can limit a CPU. Received: "
                f"cpu_allocator='default', limit_bytes={self.limit_bytes!r}. "
                "Expected: cpu_allocator='bfc' or None."
            )

    def _check_environment(self) -> None:
        forced = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH")
        wanted = self.memory_growth
        if forced in ("true", "false") and wanted not in (
            None,
            forced == "true",
        ):
            raise ValueError(
                "The environment has the last word about growth. Received: "
                f"memory_growth={wanted} with TF_FORCE_GPU_ALLOW_GROWTH="
                f"{forced}. Expected: both alike, or only one of them."
            )


def _describe(settings: list[Setting]) -> str:
    return ", ".join(f"{s.name}={s.wanted!r}" for s in settings)


def _check_boolean(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, bool):
        raise _error(name, value, "True, False or None")


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise _error(name, value, f"one of {choices}, or None")


def _check_mebibytes(name: str, value: Any) -> None:
    check_positive_integer(name, value)
    if value is not None and value < _MIB:
        raise _error(name, value, "at least 1 MiB, 1048576")


def _error(name: str, value: Any, expected: str) -> ValueError:
    return ValueError(
        f"Invalid value for argument `{name}`. "
        f"Received: {name}={value!r}. Expected: {expected}."
    )
