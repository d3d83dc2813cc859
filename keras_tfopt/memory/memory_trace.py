"""What was alive at the peak of a step, and whose it was."""

from collections import Counter
from collections.abc import Iterable
import dataclasses
from typing import Any

import numpy as np

from keras_tfopt.memory.allocation_trace import Timeline
from keras_tfopt.memory.attribution import KINDS

UNKNOWN = "?"


@dataclasses.dataclass(frozen=True)
class MemoryEntry:
    """A tensor that was alive at the peak.

    Attributes:
        kind: String. One of `KINDS`.
        layer: String. Name of the layer, a part of the step in parentheses, or
            `"?"`.
        operation: String. Name of the operation that asked for it, or path of
            the variable.
        bytes: Integer.
        dtype: String.
        shape: String.
        address: Integer or `None`. Where it is, if that is known.
        begin: Float or `None`. Seconds in the step; `None` for what was there
            before.
        end: Float or `None`. Seconds in the step; `None` for what stays.
    """

    kind: str
    layer: str
    operation: str
    bytes: int
    dtype: str = ""
    shape: str = ""
    address: int | None = None
    begin: float | None = None
    end: float | None = None


@dataclasses.dataclass(frozen=True)
class MemoryTrace:
    """The memory of one step, as `trace_memory` returns it.

    Attributes:
        device: String. Name of the logical device.
        peak_bytes: Integer. Most bytes in use at once.
        limit_bytes: Integer. What the allocator may hand out.
        entries: Tuple of `MemoryEntry`, of what was alive at the peak, the
            largest first. They add up to the peak.
        step_entries: Tuple of `MemoryEntry`, of all that the step allocated.
        timeline: `Timeline` of the step.
        commit_bytes: Integer. Most that is in use while the optimizer updates,
            a bound; that part of the step was not run.
        remarks: Tuple of strings. What the trace cannot show.
    """

    device: str
    peak_bytes: int
    limit_bytes: int
    entries: tuple[MemoryEntry, ...]
    step_entries: tuple[MemoryEntry, ...]
    timeline: Timeline
    commit_bytes: int
    remarks: tuple[str, ...] = ()

    @property
    def unattributed_ratio(self) -> float:
        """Share of the peak whose layer is not known."""
        unknown = sum(e.bytes for e in self.entries if e.layer == UNKNOWN)
        return unknown / self.peak_bytes if self.peak_bytes else 0.0

    def by_kind(self) -> dict[str, int]:
        """Returns the bytes at the peak by kind, in the order of `KINDS`."""
        found = summed((entry.kind, entry.bytes) for entry in self.entries)
        return {kind: found[kind] for kind in KINDS if kind in found}

    def by_layer(self) -> dict[str, int]:
        """Returns the bytes at the peak by layer, the largest first."""
        found = summed((entry.layer, entry.bytes) for entry in self.entries)
        return dict(found.most_common())

    def table(self, rows: int = 12) -> Any:
        """Returns the peak by layer and kind, and its largest tensors.

        Args:
            rows: Integer. Largest number of rows. Defaults to 12.

        Returns:
            A `rich.table.Table`.
        """
        from keras_tfopt.memory.trace_table import trace_table

        return trace_table(self, rows)

    def __str__(self) -> str:
        """Returns the table as text."""
        from keras_tfopt.memory.trace_table import as_text

        return as_text(self.table())

    def image(self) -> np.ndarray:
        """Returns a picture of the step, for TensorBoard or a file.

        Returns:
            uint8 array of shape `(height, width, 4)`: bytes over time, and
            below, each tensor by time and address, for
            `tf.summary.image(name, image[None], step)`.

        Raises:
            MissingExtraError: If matplotlib is not installed.
        """
        from keras_tfopt.memory.trace_plot import draw

        return draw(self)


def sort_entries(entries: Iterable[MemoryEntry]) -> tuple[MemoryEntry, ...]:
    """Returns entries, the largest first."""
    return tuple(sorted(entries, key=lambda entry: -entry.bytes))


def summed(pairs: Iterable[tuple]) -> Counter:
    """Returns the sums of sizes by key."""
    found: Counter = Counter()
    for key, size in pairs:
        found[key] += size
    return found
