"""Allocations with their lifetimes, from the events of a window."""

from collections.abc import Sequence
import dataclasses

from keras_tfopt.memory.profiler_window import AllocationEvent


@dataclasses.dataclass(frozen=True)
class Allocation:
    """A block of memory, from when it was taken until it was given back.

    Attributes:
        begin: Float. Seconds since the window was opened.
        end: Float. Seconds; infinite if it outlives the window.
        address: Integer. Where the block begins.
        bytes: Integer. Size of the block, as rounded by the allocator.
        operation: String. Name of the operation that asked; may be empty.
        region: String. `"output"`, `"temp"` or what else TensorFlow says.
        dtype: String.
        shape: String, such as `"[16,8]"`.
    """

    begin: float
    end: float
    address: int
    bytes: int
    operation: str = ""
    region: str = ""
    dtype: str = ""
    shape: str = ""

    def is_alive(self, seconds: float) -> bool:
        """Whether the block was in use at a moment."""
        return self.begin <= seconds < self.end


@dataclasses.dataclass(frozen=True)
class Timeline:
    """What an allocator has handed out, over time.

    Attributes:
        seconds: Tuple of floats. When something changed.
        in_use_bytes: Tuple of integers. Bytes in use from then on.
        allocations: Tuple of `Allocation`, of those that the window has seen.
    """

    seconds: tuple[float, ...]
    in_use_bytes: tuple[int, ...]
    allocations: tuple[Allocation, ...]

    @property
    def peak(self) -> int:
        """Position of the peak."""
        return max(range(len(self.seconds)), key=self.in_use_bytes.__getitem__)

    def alive_at_peak(self) -> list[Allocation]:
        """Returns what the window has seen taken and not given back."""
        seconds = self.seconds[self.peak]
        return [a for a in self.allocations if a.is_alive(seconds)]


def timeline_of(events: Sequence[AllocationEvent]) -> Timeline:
    """Returns the timeline of the events of one allocator.

    Args:
        events: Sequence of `AllocationEvent`, in the order of time, at least
            one.
    """
    alive: dict[int, AllocationEvent] = {}
    found = []
    for event in events:
        if event.is_allocation:
            alive[event.address] = event
            continue
        # What is older than the window is not known.
        begun = alive.pop(event.address, None)
        if begun is not None:
            found.append(_allocation(begun, event.seconds))
    found += [_allocation(event, float("inf")) for event in alive.values()]
    found.sort(key=lambda allocation: allocation.begin)
    return Timeline(
        tuple(event.seconds for event in events),
        tuple(event.in_use_bytes for event in events),
        tuple(found),
    )


def _allocation(event: AllocationEvent, end: float) -> Allocation:
    return Allocation(
        event.seconds,
        end,
        event.address,
        event.block_bytes,
        event.operation,
        event.region,
        event.dtype,
        event.shape,
    )
