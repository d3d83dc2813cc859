"""What swapping has cost so far, and when it costs too much."""

import collections
import dataclasses
from typing import Any


@dataclasses.dataclass
class SwapCounters:
    """Moves between a device and the host, or the disk.

    Attributes:
        swaps: Dict of the groups moved, by direction, `"in"` or `"out"`.
        bytes: Dict of the bytes moved, by direction.
        seconds: Dict of the time that moves took, by direction.
        hits: Integer. Uses of a group that was on the device.
        misses: Integer. Uses of a group that had to be fetched.
    """

    swaps: dict[str, int] = dataclasses.field(
        default_factory=lambda: {"in": 0, "out": 0}
    )
    bytes: dict[str, int] = dataclasses.field(
        default_factory=lambda: {"in": 0, "out": 0}
    )
    seconds: dict[str, float] = dataclasses.field(
        default_factory=lambda: {"in": 0.0, "out": 0.0}
    )
    hits: int = 0
    misses: int = 0

    @property
    def hit_ratio(self) -> float | None:
        """Share of the uses that were hits; `None` before the first use."""
        uses = self.hits + self.misses
        return self.hits / uses if uses else None

    def note(self, direction: str, moved_bytes: int, seconds: float) -> None:
        """Counts a move.

        Args:
            direction: `"in"` or `"out"`.
            moved_bytes: Integer.
            seconds: Float.
        """
        self.swaps[direction] += 1
        self.bytes[direction] += moved_bytes
        self.seconds[direction] += seconds

    def seconds_per_gib(self, direction: str) -> float | None:
        """Returns the price of moves; `None` before the first."""
        if not self.bytes[direction]:
            return None
        return self.seconds[direction] * 2**30 / self.bytes[direction]

    def metrics(self) -> dict[str, Any]:
        """Returns the metrics that are known, by name."""
        found: dict[str, Any] = {
            "memory_swaps_total": dict(self.swaps),
            "memory_swapped_bytes_total": dict(self.bytes),
        }
        if self.hit_ratio is not None:
            found["offload_hit_ratio"] = self.hit_ratio
        return found


class ThrashDetector:
    """Decides whether more time goes into swapping than into work.

    Args:
        max_share: Float in (0, 1). Share of the time that swapping may take.
        window: Integer. Moves that it is judged by.
    """

    def __init__(self, max_share: float = 0.5, window: int = 8) -> None:
        self._max_share = max_share
        self._moves: collections.deque[tuple[float, float]] = collections.deque(
            maxlen=window
        )

    def note(self, end: float, seconds: float) -> float | None:
        """Takes a move, and returns the share of the time if it is too large.

        Args:
            end: Float. When the move ended, in seconds.
            seconds: Float. What it took.
        """
        self._moves.append((end, seconds))
        if len(self._moves) < (self._moves.maxlen or 1):
            return None
        first_end, first_seconds = self._moves[0]
        elapsed = end - (first_end - first_seconds)
        share = sum(seconds for _, seconds in self._moves) / max(elapsed, 1e-9)
        return share if share > self._max_share else None

    def forget(self) -> None:
        """Starts to judge anew."""
        self._moves.clear()
