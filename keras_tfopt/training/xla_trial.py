"""Whether XLA is worth it, measured on steps that are trained anyway."""

import dataclasses
import statistics
import time

import tensorflow as tf

from keras_tfopt.compilation.shapes import Shapes
from keras_tfopt.memory.allocator import read_allocator_stats
from keras_tfopt.memory.allocator import reset_allocator_peak
from keras_tfopt.memory.limit import default_device
from keras_tfopt.memory.limit import device_limit_bytes
from keras_tfopt.training.failure import StepReport

# Of the calls that a trial may take, as a multiple of those it needs.
_PATIENCE = 10
# Most calls of each kind, as a multiple of the fewest.
_MAX_ROUNDS = 4
# Fewer calls than these say nothing about how much they vary.
_FEWEST_TO_JUDGE = 5
# Steps that differ by less are as good as each other.
_MATTERS = 1.02
# Share of the limit that a peak may come near to.
_MAX_UTILIZATION = 0.9
_MIB = 2**20


@dataclasses.dataclass
class _Measured:
    """What was measured of one kind of steps."""

    seconds: list[float] = dataclasses.field(default_factory=list)
    peak_bytes: int = 0
    is_warm: bool = False

    @property
    def median(self) -> float:
        """Seconds of a step."""
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Seconds between which half of the steps lie."""
        low, _, high = statistics.quantiles(self.seconds, method="inclusive")
        return low, high


class XLATrial:
    """Compares steps with and without XLA, by turns, on one shape of batches.

    The first call of each kind traces and compiles, and does not count. Batches
    of another shape run without XLA and do not count either.

    The kind of the lower median is kept. Where the times of both kinds overlap,
    and it could matter by more than 2 %, the trial goes on up to four times as
    long: it costs little then, because none of both is much slower.

    Args:
        steps: Integer. Fewest calls of each kind to measure.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._shapes: Shapes | None = None
        self._kinds = {False: _Measured(), True: _Measured()}
        self._calls = 0
        self._device = default_device()
        self._limit = device_limit_bytes(self._device)
        self._obstacle: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing more to measure."""
        if self._obstacle is not None:
            return True
        done = min(len(kind.seconds) for kind in self._kinds.values())
        if done < self._steps:
            return False
        return done >= _MAX_ROUNDS * self._steps or self._is_clear

    @property
    def _is_clear(self) -> bool:
        """Whether more calls would hardly change what is kept, or the time."""
        if self._steps < _FEWEST_TO_JUDGE:
            return True
        faster, slower = sorted(
            self._kinds.values(), key=lambda kind: kind.median
        )
        low, high = faster.quartiles
        other_low, other_high = slower.quartiles
        return high <= other_low or other_high <= _MATTERS * low

    @property
    def has_run_plain(self) -> bool:
        """Whether a step without XLA has gone well."""
        return self._kinds[False].is_warm

    def wants_xla(self, shapes: Shapes) -> bool:
        """Whether a batch shall run under XLA, for the comparison."""
        if shapes != (self._shapes or shapes):
            return False
        plain, compiled = self._kinds[False], self._kinds[True]
        if not (plain.is_warm and compiled.is_warm):
            return plain.is_warm
        done = len(plain.seconds) + len(compiled.seconds)
        # Neither kind always follows the other.
        return done % 4 in (1, 2)

    def note(self, report: StepReport, shapes: Shapes) -> None:
        """Takes the measure of good steps."""
        self._calls += 1
        if self._calls > 2 * _PATIENCE * (self._steps + 1):
            self._obstacle = "batches of one shape are too rare to compare"
        if self._shapes is None:
            self._shapes = shapes
        wants_xla = report.plan.jit_compile
        if wants_xla and report.function.compiled is None:
            self._obstacle = "the step cannot be compiled"
        seconds = (report.seconds + self._wait()) / report.steps
        peak = self._take_peak()
        if shapes != self._shapes or self.is_complete:
            return
        kind = self._kinds[wants_xla]
        if kind.is_warm:
            kind.seconds.append(seconds)
            kind.peak_bytes = max(kind.peak_bytes, peak)
        kind.is_warm = True

    def decide(self) -> tuple[bool, str]:
        """Returns whether to use XLA, and why, with the figures."""
        if self._obstacle is not None:
            return False, f"no trial of XLA: {self._obstacle}"
        plain, compiled = self._kinds[False], self._kinds[True]
        reason = (
            f"a step takes {compiled.median * 1e3:.3f} ms with XLA and "
            f"{plain.median * 1e3:.3f} ms without, medians of "
            f"{min(len(plain.seconds), len(compiled.seconds))}"
        )
        is_better = compiled.median < plain.median
        if self._limit is not None:
            reason += (
                f"; peaks {compiled.peak_bytes / _MIB:.1f} and "
                f"{plain.peak_bytes / _MIB:.1f} of {self._limit / _MIB:.0f} MiB"
            )
            room = _MAX_UTILIZATION * self._limit
            is_tight = compiled.peak_bytes > room >= plain.peak_bytes
            is_better = is_better and not is_tight
        return is_better, reason

    def _wait(self) -> float:
        """Waits until a GPU is done, and returns the seconds."""
        if self._device.startswith("CPU"):
            # It is done when it returns.
            return 0.0
        start = time.perf_counter()
        tf.test.experimental.sync_devices()
        return time.perf_counter() - start

    def _take_peak(self) -> int:
        """Returns the peak since it was last taken, where there is a limit."""
        if self._limit is None:
            return 0
        stats = read_allocator_stats(self._device)
        reset_allocator_peak(self._device)
        return 0 if stats is None else stats.peak_bytes
