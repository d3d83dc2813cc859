"""Times and peaks that can be compared: side by side, in one process."""

from collections.abc import Callable
from collections.abc import Mapping
import statistics
import time
from typing import Any

from keras_tfopt import memory
from keras_tfopt.turns import by_turns


def alternate(
    functions: Mapping[str, Callable[[], Any]], rounds: int
) -> dict[str, float]:
    """Times functions in turns, so that what slows one slows all.

    Args:
        functions: Dict of callables. Each is called once before it is timed.
        rounds: Integer. How often each is timed.

    Returns:
        Dict of floats. Median wall time of each in seconds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    for name in by_turns(list(functions), rounds):
        start = time.perf_counter()
        functions[name]()
        seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def peak_bytes(function: Callable[[], None], device: str) -> int | None:
    """Returns what a function needs at most on top of what is in use.

    Args:
        function: Callable. It is called once before it is measured, and then
            three times, of which the median counts.
        device: String. Name of a logical device.

    Returns:
        Integer, or `None` if the device counts nothing.
    """
    function()
    peaks = []
    for _ in range(3):
        before = memory.reset_allocator_peak(device)
        function()
        after = memory.read_allocator_stats(device)
        if before is None or after is None:
            return None
        peaks.append(after.peak_bytes - before.current_bytes)
    return int(statistics.median(peaks))
