"""Settings of TensorFlow's devices, each with how it is read and set."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import os
from typing import Any

import tensorflow as tf

_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        name: String. What TensorFlow calls it.
        wanted: What it should be.
        read: Callable that returns what it is.
        write: Callable that sets it.
    """

    name: str
    wanted: Any
    read: Callable[[], Any]
    write: Callable[[Any], None]


def environment_setting(name: str, wanted: str | None) -> Setting:
    """Returns a variable of the environment as a setting.

    Args:
        name: String.
        wanted: String, or `None` to unset it.
    """

    def write(value: str | None) -> None:
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

    return Setting(name, wanted, lambda: os.environ.get(name), write)


def thread_settings(
    inter_op: int | None, intra_op: int | None
) -> list[Setting]:
    """Returns the numbers of threads that are given, as settings."""
    threading = tf.config.threading
    settings = [
        Setting(
            "inter_op_parallelism_threads",
            inter_op,
            threading.get_inter_op_parallelism_threads,
            threading.set_inter_op_parallelism_threads,
        ),
        Setting(
            "intra_op_parallelism_threads",
            intra_op,
            threading.get_intra_op_parallelism_threads,
            threading.set_intra_op_parallelism_threads,
        ),
    ]
    return [s for s in settings if s.wanted is not None]


def device_settings(
    devices: Sequence[tf.config.PhysicalDevice],
    memory_growth: bool | None,
    limits: Mapping[str, int],
    counts: Mapping[str, int],
) -> list[Setting]:
    """Returns growth, limits and parts of physical devices, as settings.

    Args:
        devices: Sequence of `tf.config.PhysicalDevice`.
        memory_growth: Boolean or `None`.
        limits: Dict from names such as `"GPU:0"` to bytes.
        counts: Dict from such names to numbers of logical devices.

    Raises:
        ValueError: If there is no device of a name.
    """
    known = {d.name.rpartition("physical_device:")[-1]: d for d in devices}
    for name in {**limits, **counts}:
        if name not in known:
            raise ValueError(
                f"There is no such device. Received: {name!r}. Expected: one "
                f"of {sorted(known)}."
            )
    settings = []
    if memory_growth is not None:
        # TensorFlow wants all GPUs alike.
        settings += [
            _growth_setting(name, device, memory_growth)
            for name, device in known.items()
            if device.device_type == "GPU"
        ]
    settings += [
        _parts_setting(name, known[name], parts_of(limits.get(name), count))
        for name in known
        if (count := counts.get(name, 1)) > 1 or name in limits
    ]
    return settings


def parts_of(limit: int | None, count: int) -> list[int | None]:
    """Returns the limits of equal parts of a device, in MiB.

    Args:
        limit: Integer or `None`. Bytes of the device.
        count: Integer. Number of parts.
    """
    if limit is None:
        return [None] * count
    return [limit // count // _MIB] * count


def _growth_setting(name: str, device: Any, wanted: bool) -> Setting:
    config = tf.config.experimental
    return Setting(
        f"memory_growth of {name}",
        wanted,
        lambda: bool(config.get_memory_growth(device)),
        lambda value: config.set_memory_growth(device, value),
    )


def _parts_setting(name: str, device: Any, wanted: list[int | None]) -> Setting:
    def read() -> list[int | None] | None:
        parts = tf.config.get_logical_device_configuration(device)
        return None if parts is None else [part.memory_limit for part in parts]

    def write(limits: list[int | None]) -> None:
        make = tf.config.LogicalDeviceConfiguration
        tf.config.set_logical_device_configuration(
            device, [make(memory_limit=limit) for limit in limits]
        )

    return Setting(f"logical devices of {name}, MiB", wanted, read, write)
