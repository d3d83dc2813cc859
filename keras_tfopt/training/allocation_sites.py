"""Where in Python more and more memory is allocated."""

import collections
import pathlib
import tracemalloc

from keras_tfopt.memory.periodic_thread import PeriodicThread
from keras_tfopt.training.fit_watch import FitWatch

# Callers to remember: NumPy's own lines say little.
_FRAMES = 3

# How soon tracing ends after an exception ended its `fit`.
_INTERVAL_SECONDS = 1.0


class AllocationSites:
    """Traces Python's allocations during a `fit`, and names what grows.

    This slows all Python code down. What TensorFlow allocates is not in it, but
    what holds it often is. To be started and stopped inside of `fit`; an
    exception that ends `fit` ends it as well.
    """

    def __init__(self) -> None:
        self._baseline: tracemalloc.Snapshot | None = None
        self._thread: PeriodicThread | None = None

    def start(self) -> None:
        """Starts to trace, unless somebody does already."""
        self.stop()
        self._baseline = None
        if tracemalloc.is_tracing():
            return
        tracemalloc.start(_FRAMES)
        self._thread = PeriodicThread(
            lambda: None,
            _INTERVAL_SECONDS,
            FitWatch().is_running,
            type(self).__name__,
            tracemalloc.stop,
        )
        self._thread.start()

    def stop(self) -> None:
        """Ends the tracing, if it is ours."""
        if self._thread is not None:
            self._thread.stop()
            self._thread = None

    def remember(self) -> None:
        """Takes what is allocated now as what later sizes are compared to."""
        if self._baseline is None and tracemalloc.is_tracing():
            self._baseline = self._snapshot()

    def grown(self, count: int = 5) -> tuple[str, ...]:
        """Returns the lines of code whose memory has grown most since.

        Of the lines on the way to an allocation it is the last one outside of
        installed packages.

        Args:
            count: Integer. How many lines. Defaults to 5.
        """
        if self._baseline is None or not tracemalloc.is_tracing():
            return ()
        now = self._snapshot()
        grown: collections.Counter[str] = collections.Counter()
        for difference in now.compare_to(self._baseline, "traceback"):
            grown[_line_of(difference.traceback)] += difference.size_diff
        return tuple(
            f"{line} +{size / 2**20:.1f} MiB"
            for line, size in grown.most_common(count)
            if size > 0
        )

    def _snapshot(self) -> tracemalloc.Snapshot:
        mine = tracemalloc.Filter(False, tracemalloc.__file__)
        return tracemalloc.take_snapshot().filter_traces([mine])


def _line_of(traceback: tracemalloc.Traceback) -> str:
    """Returns the last line on the way that is somebody's own."""
    frames = list(reversed(traceback))
    own = (f for f in frames if not set(_FOREIGN) & set(_parts(f.filename)))
    frame = next(own, frames[0])
    return f"{frame.filename}:{frame.lineno}"


def _parts(filename: str) -> tuple[str, ...]:
    return pathlib.PurePath(filename).parts


_FOREIGN = ("site-packages", "dist-packages")
