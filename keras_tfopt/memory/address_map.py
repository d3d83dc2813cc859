"""Where tensors are, without the space between the regions of memory."""

from collections.abc import Sequence
import dataclasses

from keras_tfopt.memory.memory_trace import MemoryEntry
from keras_tfopt.memory.memory_trace import MemoryTrace

# A larger gap lies between regions, not between tensors.
_GAP = 2**22


@dataclasses.dataclass(frozen=True)
class AddressMap:
    """Tensors by address, in regions that stand next to each other.

    Attributes:
        entries: Tuple of `MemoryEntry` whose address is known.
        offsets: Tuple of integers. Where each begins, in bytes from the start
            of the first region.
        borders: Tuple of integers. Where each region ends.
    """

    entries: tuple[MemoryEntry, ...]
    offsets: tuple[int, ...]
    borders: tuple[int, ...]


def address_map(trace: MemoryTrace) -> AddressMap:
    """Returns where the tensors of a step are, and those that were there.

    Args:
        trace: `MemoryTrace`.
    """
    standing = [entry for entry in trace.entries if entry.begin is None]
    return map_entries([*standing, *trace.step_entries])


def map_entries(entries: Sequence[MemoryEntry]) -> AddressMap:
    """Returns the map of tensors; those of unknown address are left out.

    Args:
        entries: Sequence of `MemoryEntry`.
    """
    placed = sorted(
        ((entry.address, entry) for entry in entries if entry.address),
        key=lambda pair: pair[0],
    )
    offsets: list[int] = []
    borders: list[int] = []
    # Address of the start of the region minus its place in the map.
    shift = end = placed[0][0] if placed else 0
    for address, entry in placed:
        if address > end + _GAP:
            borders.append(end - shift)
            shift = address - borders[-1]
        offsets.append(address - shift)
        end = max(end, address + entry.bytes)
    if placed:
        borders.append(end - shift)
    return AddressMap(
        tuple(entry for _, entry in placed), tuple(offsets), tuple(borders)
    )
