"""What the values were, a while back."""

import collections
from collections.abc import Mapping
import dataclasses
import functools

Labels = tuple[tuple[str, str], ...]
Series = tuple[str, Labels]

# Recent snapshots all stay; of older ones one for each of these seconds.
_RECENT_SECONDS = 60.0
_SPACING_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class Distribution:
    """A histogram so far.

    Attributes:
        counts: Tuple of integers. Observations in each bucket, up to and with
            its bound; one more for those above all bounds.
        total: Float. Sum of all observations.
    """

    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """Observations in all buckets."""
        return sum(self.counts)


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """All values at one moment.

    Attributes:
        time: Float. Seconds since the epoch of the clock.
        step: Integer. Optimizer updates so far.
        values: Dict of floats by metric and labels.
        distributions: Dict of `Distribution` by name of the metric.
    """

    time: float
    step: int
    values: Mapping[Series, float]
    distributions: Mapping[str, Distribution]

    def of(self, name: str) -> dict[Labels, float]:
        """Returns the values of a metric by their labels."""
        return self._by_metric.get(name, {})

    @functools.cached_property
    def _by_metric(self) -> dict[str, dict[Labels, float]]:
        # Rates and averages ask many snapshots for one metric each.
        found: dict[str, dict[Labels, float]] = {}
        for (metric, labels), value in self.values.items():
            found.setdefault(metric, {})[labels] = value
        return found


class History:
    """Keeps snapshots for rates and averages over some time.

    Args:
        seconds: Float. How far back.
    """

    def __init__(self, seconds: float = 1800.0) -> None:
        self._seconds = seconds
        self._old: collections.deque[Snapshot] = collections.deque()
        self._recent: collections.deque[Snapshot] = collections.deque()

    def append(self, snapshot: Snapshot) -> None:
        """Adds the newest snapshot and lets go of what is too old."""
        self._recent.append(snapshot)
        while snapshot.time - self._recent[0].time > _RECENT_SECONDS:
            aged = self._recent.popleft()
            is_spaced = (
                not self._old
                or aged.time - self._old[-1].time >= _SPACING_SECONDS
            )
            if is_spaced:
                self._old.append(aged)
        while self._old and snapshot.time - self._old[0].time > self._seconds:
            self._old.popleft()

    @property
    def latest(self) -> Snapshot | None:
        """The newest snapshot, if there is any."""
        return self._recent[-1] if self._recent else None

    def within(self, seconds: float) -> list[Snapshot]:
        """Returns the snapshots of the last seconds, oldest first."""
        if self.latest is None:
            return []
        begin = self.latest.time - seconds
        return [s for s in (*self._old, *self._recent) if s.time >= begin]
