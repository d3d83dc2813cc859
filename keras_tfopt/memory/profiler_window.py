"""A short window in which TensorFlow records every allocation."""

import dataclasses
import logging
import pathlib
import shutil
import tempfile
from typing import Any

import tensorflow as tf

from keras_tfopt import _compat_memory

logger = logging.getLogger(__name__)

_ALLOCATED, _FREED = "MemoryAllocation", "MemoryDeallocation"
_OPTIONS = {
    "host_tracer_level": 1,
    "python_tracer_level": 0,
    "device_tracer_level": 0,
}


@dataclasses.dataclass(frozen=True)
class AllocationEvent:
    """One allocation, or the end of one, as the allocator reports it.

    Attributes:
        seconds: Float. Time since the first event of the window.
        is_allocation: Boolean. Whether memory is taken or given back.
        allocator: String. Name of the allocator.
        address: Integer. Where the block begins.
        block_bytes: Integer. Size of the block, as rounded by the allocator.
        requested_bytes: Integer. Size asked for.
        in_use_bytes: Integer. Bytes in use after the event.
        available_bytes: Integer. What the allocator may still hand out.
        peak_bytes: Integer. Most bytes in use so far.
        fragmentation: Float. Share of the free bytes in the allocator's regions
            that is not in its largest free block.
        operation: String. Name of the operation that asked; may be empty.
        region: String. `"output"`, `"temp"` or what else TensorFlow says.
        dtype: String.
        shape: String, such as `"[16,8]"`.
    """

    seconds: float
    is_allocation: bool
    allocator: str
    address: int
    block_bytes: int
    requested_bytes: int
    in_use_bytes: int
    available_bytes: int
    peak_bytes: int
    fragmentation: float
    operation: str = ""
    region: str = ""
    dtype: str = ""
    shape: str = ""

    @property
    def limit_bytes(self) -> int:
        """What the allocator may hand out in all."""
        return self.in_use_bytes + self.available_bytes


class ProfilerWindow:
    """Records the allocations of the whole process while it is open.

    TensorFlow has one profiler. Where another session uses it, as that of
    `keras.callbacks.TensorBoard(profile_batch=...)`, the window stays closed,
    with one line in the log. To open and close takes about two milliseconds,
    and half a second more for each ten thousand allocations; `events` takes as
    long again, and may be called on another thread.

    Example:

    ```python
    import tensorflow as tf

    from keras_tfopt.memory import ProfilerWindow

    with ProfilerWindow() as window:
        product = tf.ones((256, 256)) @ tf.ones((256, 256))
    for event in window.events():
        print(event.operation, event.shape, event.block_bytes)
    ```

    There are events only where an allocator reports them: on GPUs, and on a
    CPU with `TF_CPU_ALLOCATOR_USE_BFC=true`.

    Attributes:
        is_recorded: Boolean. Whether the window has recorded anything.
    """

    def __init__(self) -> None:
        self._folder: str | None = None
        self._serialized = b""
        self.is_recorded = False

    def __enter__(self) -> "ProfilerWindow":
        """Opens the window, unless another session runs."""
        options = tf.profiler.experimental.ProfilerOptions(**_OPTIONS)
        folder = ""
        try:
            folder = tempfile.mkdtemp(prefix="keras_tfopt_")
            tf.profiler.experimental.start(folder, options)
        except tf.errors.AlreadyExistsError:
            shutil.rmtree(folder, ignore_errors=True)
            logger.info(
                "Allocations are not recorded: another profiler session runs."
            )
        except (OSError, tf.errors.OpError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            logger.info("Allocations are not recorded: %s", error)
        else:
            self._folder = folder
        return self

    def __exit__(self, *exception: Any) -> None:
        """Closes the window."""
        folder, self._folder = self._folder, None
        if folder is None:
            return
        try:
            tf.profiler.experimental.stop()
            files = pathlib.Path(folder).rglob("*.xplane.pb")
            self._serialized = b"".join(file.read_bytes() for file in files)
            self.is_recorded = True
        except (OSError, tf.errors.OpError) as error:
            logger.info("Allocations are not recorded: %s", error)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def events(self, device: str | None = None) -> list[AllocationEvent]:
        """Returns what was recorded, in the order of time.

        Args:
            device: String or `None`. Name of the logical device whose
                allocator is asked for, such as `"GPU:0"`. Defaults to `None`,
                which means all.
        """
        wanted = None if device is None else allocator_name(device)
        return [
            event
            for event in _parse(self._serialized)
            if wanted in (None, event.allocator)
        ]


def allocator_name(device: str) -> str:
    """Returns how TensorFlow calls the allocator of a device.

    Args:
        device: String. Name of a logical device, such as `"GPU:0"`.
    """
    kind, _, index = device.rpartition("device:")[-1].strip("/").partition(":")
    if kind == "CPU":
        return "bfc_cpu_allocator_for_gpu"
    return f"{kind}_{index}_bfc"


def _parse(serialized: bytes) -> list[AllocationEvent]:
    found = []
    for plane in _compat_memory.parse_xspace(serialized).planes:
        names = {
            key: metadata.name
            for key, metadata in plane.event_metadata.items()
            if metadata.name in (_ALLOCATED, _FREED)
        }
        keys = {k: metadata.name for k, metadata in plane.stat_metadata.items()}
        for line in plane.lines:
            start = line.timestamp_ns * 1000
            found += [
                (
                    start + event.offset_ps,
                    names[event.metadata_id],
                    _statistics(event, keys),
                )
                for event in line.events
                if event.metadata_id in names
            ]
    # Events of different threads come one thread after the other.
    found.sort(key=lambda entry: entry[0])
    first = found[0][0] if found else 0
    return [
        _event((picoseconds - first) * 1e-12, name == _ALLOCATED, statistics)
        for picoseconds, name, statistics in found
    ]


def _statistics(event: Any, keys: dict[int, str]) -> dict[str, Any]:
    found = {}
    for statistic in event.stats:
        kind = statistic.WhichOneof("value")
        value = getattr(statistic, kind)
        name = keys[statistic.metadata_id]
        # Strings stand in the table of names.
        found[name] = keys[value] if kind == "ref_value" else value
    return found


def _event(
    seconds: float, is_allocation: bool, statistics: dict[str, Any]
) -> AllocationEvent:
    get = statistics.get
    return AllocationEvent(
        seconds=seconds,
        is_allocation=is_allocation,
        allocator=str(get("allocator_name", "")),
        address=int(get("addr", 0)),
        block_bytes=int(get("allocation_bytes", 0)),
        requested_bytes=int(get("requested_bytes", 0)),
        in_use_bytes=int(get("bytes_allocated", 0)),
        available_bytes=int(get("bytes_available", 0)),
        peak_bytes=int(get("peak_bytes_in_use", 0)),
        fragmentation=float(get("fragmentation", 0.0)),
        operation=str(get("tf_op", "")),
        region=str(get("region_type", "")),
        dtype=_compat_memory.data_type_name(int(get("data_type", 0))),
        shape=str(get("shape", "")),
    )
