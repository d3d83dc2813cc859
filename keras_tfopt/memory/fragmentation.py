"""Free memory in pieces: how much of it is of use for a large tensor."""

from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import logging
import math

import tensorflow as tf

from keras_tfopt.memory.profiler_window import AllocationEvent
from keras_tfopt.memory.profiler_window import ProfilerWindow

logger = logging.getLogger(__name__)

# Large enough to move the allocator's figure, small enough for any device.
_PROBE_BYTES = 2**20


@dataclasses.dataclass(frozen=True)
class Fragmentation:
    """How the free memory of an allocator is split.

    Attributes:
        limit_bytes: Integer. What the allocator may hand out.
        in_use_bytes: Integer. Bytes in use.
        peak_bytes: Integer. Most bytes in use since the peak was last reset.
        largest_free_bytes: Integer. Largest tensor that can be allocated.
    """

    limit_bytes: int
    in_use_bytes: int
    peak_bytes: int
    largest_free_bytes: int

    @property
    def free_bytes(self) -> int:
        """What is not in use."""
        return max(self.limit_bytes - self.in_use_bytes, 0)

    @property
    def ratio(self) -> float:
        """Share of the free bytes outside of the largest free block."""
        if not self.free_bytes:
            return 0.0
        return max(1.0 - self.largest_free_bytes / self.free_bytes, 0.0)

    @property
    def utilization(self) -> float:
        """The peak as a share of the limit."""
        return self.peak_bytes / self.limit_bytes if self.limit_bytes else 0.0

    def __str__(self) -> str:
        """Returns the figures in words."""
        mib = 2**20
        return (
            f"{self.free_bytes / mib:.1f} of {self.limit_bytes / mib:.1f} MiB "
            f"are free, the largest block has "
            f"{self.largest_free_bytes / mib:.1f} MiB: fragmentation "
            f"{self.ratio:.0%}, peak {self.utilization:.0%} of the limit"
        )


def read_fragmentation(device: str = "CPU:0") -> Fragmentation | None:
    """Reads how the free memory of a device is split.

    The figure is the allocator's own, from a profiler window around an
    allocation of a MiB. It takes some milliseconds. `clear_session` does not
    change it: that frees Keras' names and graphs, while variables live as long
    as the models that own them.

    Example:

    ```python
    from keras_tfopt.memory import read_fragmentation

    found = read_fragmentation("CPU:0")
    if found is not None:
        print(found.largest_free_bytes, found.ratio)
    ```

    Args:
        device: String. Name of a logical device. Defaults to `"CPU:0"`.

    Returns:
        `Fragmentation`, or `None` where the allocator reports nothing or the
        profiler is in use; one line in the log says which.
    """
    return parse_probe(probe(device), device)


def probe(device: str) -> ProfilerWindow:
    """Records an allocation on a device, for `parse_probe`."""
    with ProfilerWindow() as window, tf.device(device):
        # Where not even this fits, what was freed before tells enough.
        with contextlib.suppress(tf.errors.ResourceExhaustedError):
            tf.zeros((_PROBE_BYTES,), tf.uint8)
    return window


def parse_probe(window: ProfilerWindow, device: str) -> Fragmentation | None:
    """Returns what a window says about the free memory of a device."""
    if not window.is_recorded:
        return None
    events = window.events(device)
    if not events:
        _report_absence(device)
        return None
    return fragmentation_of(events)


def fragmentation_of(events: Sequence[AllocationEvent]) -> Fragmentation:
    """Returns how the free memory was split after the last of some events.

    Args:
        events: Sequence of `AllocationEvent` of one allocator, at least one.
    """
    last = events[-1]
    limit = last.limit_bytes
    region_bytes = min(solve_region_bytes(events) or limit, limit)
    free_in_regions = max(region_bytes - last.in_use_bytes, 0)
    largest = free_in_regions * (1.0 - last.fragmentation)
    if math.isnan(largest):
        largest = 0.0
    return Fragmentation(
        limit_bytes=limit,
        in_use_bytes=last.in_use_bytes,
        peak_bytes=last.peak_bytes,
        # What was never reserved can still be had in one piece.
        largest_free_bytes=int(max(largest, limit - region_bytes)),
    )


def solve_region_bytes(events: Sequence[AllocationEvent]) -> int | None:
    """Returns how much an allocator has reserved, from its own figures.

    An allocator that grows on demand divides by what is free in its regions,
    and does not say how large they are. Between two events that change what is
    free by n bytes and leave the largest free block, or both alike, the figures
    have one solution.

    Args:
        events: Sequence of `AllocationEvent` of one allocator.

    Returns:
        Integer, or `None` if the figures do not tell.
    """
    limit = events[-1].limit_bytes
    best_taken, best = 0, None
    for before, after in zip(events, events[1:], strict=False):
        if math.isnan(after.fragmentation):
            # Nothing is free, of nothing.
            return after.in_use_bytes
        taken = after.in_use_bytes - before.in_use_bytes
        solid, solid_after = 1 - before.fragmentation, 1 - after.fragmentation
        if abs(taken) < best_taken or solid == solid_after:
            continue
        # Taken from elsewhere, the largest block becomes a larger share.
        is_elsewhere = (solid_after > solid) == (taken > 0)
        factor = solid_after if is_elsewhere else solid_after - 1
        free = taken * factor / (solid_after - solid)
        region_bytes = before.in_use_bytes + free
        # Otherwise another block has become the largest one. The figures have
        # six digits.
        if free >= 0 and region_bytes <= limit * (1 + 1e-3):
            best_taken, best = abs(taken), min(round(region_bytes), limit)
    return best


@functools.cache
def _report_absence(device: str) -> None:
    """Logs once per device why there is no reading."""
    logger.info(
        "No fragmentation of %s: its allocator reports no allocations. A CPU "
        "does with TF_CPU_ALLOCATOR_USE_BFC=true in the environment before "
        "TensorFlow starts.",
        device,
    )
