"""Whether memory grows from epoch to epoch, and how fast."""

from collections.abc import Sequence
import dataclasses
import itertools
import math
import statistics

# One-sided quantile of a chance of one in a hundred.
_QUANTILE = 2.33

# Jumps that may come and stay, such as a cache that fills, and are no leak.
_FORGIVEN_JUMPS = 2

# What must be left of a slope when those are taken out of it.
_SUSTAINED = 0.25


@dataclasses.dataclass(frozen=True)
class LeakSlope:
    """How memory grows from epoch to epoch.

    Attributes:
        bytes_per_epoch: Float. The median of the slopes of all pairs of epochs.
        is_growing: Boolean. Whether it grows steadily: nearly all pairs of
            epochs agree, no more of them disagree than would by chance in one
            of a hundred cases; it is not the work of one or two jumps; and
            the last epochs grow as well.
    """

    bytes_per_epoch: float
    is_growing: bool


def leak_slope(sizes: Sequence[float], min_points: int = 5) -> LeakSlope | None:
    """Returns how memory grows, from its sizes at the ends of epochs.

    Single epochs that are far off, and up to a quarter of all of them, do not
    change the slope much.

    Example:

    ```python
    from keras_tfopt.memory.leak_slope import leak_slope

    steady = leak_slope([10, 22, 29, 41, 50, 62])
    assert steady.is_growing and 9 < steady.bytes_per_epoch < 11
    assert not leak_slope([10, 10, 50, 50, 50, 50]).is_growing
    ```

    Args:
        sizes: Sequence of numbers, one per epoch, without those in which memory
            still fills up.
        min_points: Integer. With fewer sizes nothing can be said. Defaults to
            5.

    Returns:
        `LeakSlope`, or `None` if there are too few sizes.

    Reference:
        - [Sen, 1968](https://doi.org/10.1080/01621459.1968.10480934), for the
          slope.
        - [Mann, 1945](https://doi.org/10.2307/1907187), for what counts as
          growing.
    """
    if len(sizes) < min_points:
        return None
    sizes = [float(size) for size in sizes]
    slope = _median_slope(sizes)
    is_growing = (
        slope > 0
        and _agrees(sizes)
        and _median_slope(_without_jumps(sizes)) >= _SUSTAINED * slope
        and _median_slope(sizes[len(sizes) // 2 :]) >= _SUSTAINED * slope
    )
    return LeakSlope(slope, is_growing)


def _pairs(sizes: Sequence[float]) -> list[tuple[int, float]]:
    """Returns distance and difference of all pairs."""
    return [
        (later - earlier, sizes[later] - sizes[earlier])
        for later in range(len(sizes))
        for earlier in range(later)
    ]


def _median_slope(sizes: Sequence[float]) -> float:
    return statistics.median(
        difference / distance for distance, difference in _pairs(sizes)
    )


def _agrees(sizes: Sequence[float]) -> bool:
    """Whether more pairs grow than would by chance."""
    count = len(sizes)
    score = sum((d > 0) - (d < 0) for _, d in _pairs(sizes))
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return score > _QUANTILE * deviation


def _without_jumps(sizes: Sequence[float]) -> list[float]:
    """Returns the sizes as if the largest rises had not been."""
    # A single epoch that is far off is a rise and a fall, and not a jump.
    triples = zip(sizes, sizes[1:], sizes[2:], strict=False)
    sizes = [sizes[0], *map(statistics.median, triples), sizes[-1]]
    rises = [after - before for before, after in itertools.pairwise(sizes)]
    largest = sorted(range(len(rises)), key=rises.__getitem__)
    for index in largest[-_FORGIVEN_JUMPS:]:
        rises[index] = min(rises[index], 0)
    result = [sizes[0]]
    for rise in rises:
        result.append(result[-1] + rise)
    return result
