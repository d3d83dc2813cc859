"""Measuring what a step needs, before it is trained with."""

from collections.abc import Sequence
import dataclasses
import time
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt.accumulation import TRAINING
from keras_tfopt.accumulation import SplitStep
from keras_tfopt.accumulation.split import take_rows
from keras_tfopt.errors import is_out_of_memory
from keras_tfopt.memory.allocator import PeakReading
from keras_tfopt.memory.allocator import PeakWindow
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.plan import Offload
from keras_tfopt.plan import Remat
from keras_tfopt.plan import extras_of
from keras_tfopt.training.batch import spec_of
from keras_tfopt.training.batch import static_rows
from keras_tfopt.training.commit import CommitLog
from keras_tfopt.training.commit import awaited
from keras_tfopt.training.step_function import as_function
from keras_tfopt.training.step_function import pure_split_function
from keras_tfopt.training.step_function import split_step

# Micro-batches in a probe: fewer of them peak lower than a whole step does.
_MICROBATCHES = 16

# Runs of a probe: what happens side by side by chance adds to a peak.
_RUNS = 2

# A size that is this close to what the limit allows is good enough.
_CLOSE = 1.1

# Growth near the limit, where a line is followed: a peak that grows with the
# size stays within what is left above the usual share of the device.
_CAREFUL = 1.15


@dataclasses.dataclass(frozen=True)
class Probe:
    """A measured micro-batch.

    Attributes:
        microbatch_size: Integer. Its rows.
        peak_bytes: Integer. Most bytes in use at once, all tensors included.
        remat: What is computed again, as for `ExecutionPlan`. Defaults to
            `None`.
        rows_per_second: Float. Defaults to 0, where it was not timed.
        offload: What the host keeps, as for `ExecutionPlan`. Defaults to
            `None`.
    """

    microbatch_size: int
    peak_bytes: int
    remat: Remat = None
    rows_per_second: float = 0.0
    offload: Offload = None

    @property
    def extras(self) -> str:
        """What saves memory beside the micro-batch, in words."""
        return extras_of(self.remat, self.offload)


class Prober:
    """Measures the pure step of a model: its peak and its time.

    Args:
        model: A compiled Keras model.
        batch: Nest of tensors.
        device: String. Name of the logical device that computes.
        remat: What is computed again, as for `ExecutionPlan`. Defaults to
            `None`.
        offload: What the host keeps, as for `ExecutionPlan`. Defaults to
            `None`.

    Attributes:
        rows: Integer. Rows of the batch.
        probes: List of `Probe`, in the order of the search.
    """

    def __init__(
        self,
        model: keras.Model,
        batch: Any,
        device: str,
        remat: Remat = None,
        offload: Offload = None,
    ) -> None:
        self._batch = batch
        # Monitors may reset the allocator's own peak meanwhile.
        self._window = PeakWindow(device)
        self._model = model
        self._remat = remat
        self._offload = offload
        plan = ExecutionPlan(microbatch_size=1, remat=remat, offload=offload)
        self._step: SplitStep = split_step(
            model, spec_of(batch), batch, TRAINING, plan
        )
        self._pure = pure_split_function(self._step, plan)
        self._log = CommitLog()
        self._run = as_function(self._await, model.run_eagerly)
        self.rows = static_rows(spec_of(batch)) or 1
        self.probes: list[Probe] = []

    def measure(self, size: int) -> Probe | None:
        """Returns the peak with a micro-batch; `None` if it did not fit."""
        rows = min(self.rows, size * _MICROBATCHES)
        batch = take_rows(self._batch, 0, rows)
        self._window.restart()
        try:
            for _ in range(_RUNS):
                start = time.perf_counter()
                self._run(batch, tf.constant(size))
                self._wait()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return None
        seconds = time.perf_counter() - start
        peak = self._stats().peak_bytes
        probe = Probe(size, peak, self._remat, rows / seconds, self._offload)
        self.probes.append(probe)
        return probe

    def commit_bytes(self) -> int:
        """Returns a bound of what is in use while the optimizer updates."""
        current = self._stats().current_bytes
        return current + update_bytes(self._model, self._step.trainable)

    def _stats(self) -> PeakReading:
        reading = self._window.read()
        if reading is None:
            raise RuntimeError(f"{self._window.device} stopped counting.")
        return reading

    def _wait(self) -> None:
        """Waits until a GPU is done."""
        if not self._window.device.startswith("CPU"):
            tf.test.experimental.sync_devices()

    def _await(self, batch: Any, size: tf.Tensor) -> None:
        """Holds what a step has computed when it begins to write."""
        _, outputs = awaited(self._pure(batch, size))
        with tf.control_dependencies(outputs):
            # Without an effect, nothing would be computed.
            self._log.mark()


def update_bytes(
    model: keras.Model, trainable: Sequence[keras.Variable]
) -> int:
    """Returns a bound of what the optimizer's update adds to what is in use.

    Chained updates have temporaries for one variable at a time; clipping makes
    a second copy of all gradients.

    Args:
        model: A compiled Keras model.
        trainable: Sequence of the variables that are updated.
    """
    sizes = [_bytes(variable) for variable in trainable]
    clips = any(
        getattr(model.optimizer, name, None)
        for name in ("clipnorm", "clipvalue", "global_clipnorm")
    )
    return sum(sizes) * (2 if clips else 1) + 3 * max(sizes, default=0)


def search(prober: Prober, limit: int, start: int = 1) -> Probe | None:
    """Returns the probe of the largest size that fits, or `None`.

    Args:
        prober: `Prober`.
        limit: Integer. Bytes that a step may use.
        start: Integer. Size to begin with. Defaults to 1.
    """
    fits: Probe | None = None
    exceeds: Probe | None = None
    size = start
    while size:
        probe = prober.measure(size)
        if probe is not None and probe.peak_bytes <= limit:
            fits = probe
        else:
            exceeds = probe or Probe(size, 2 * limit)
        least = prober.probes[0].peak_bytes if prober.probes else 0
        size = _next_size(
            fits or Probe(0, 0), exceeds, limit, prober.rows, least
        )
    return fits


def _next_size(
    fits: Probe, exceeds: Probe | None, limit: int, rows: int, least: int
) -> int:
    """Returns the size to measure next, or 0 when there is none."""
    size = fits.microbatch_size
    # What grows with the size is what is above the peak of the smallest.
    spare = (limit - least) / max(fits.peak_bytes - least, 1)
    if not size or spare <= _CLOSE:
        return 0
    if exceeds is None:
        # Allocators that do not count small blocks may answer 0.
        room = limit / max(fits.peak_bytes, 1)
        if room > _CLOSE:
            # A peak at most doubles with its micro-batch.
            grown = max(int(size * min(room, 2.0)), size + 1)
        else:
            grown = int(size * min(spare, _CAREFUL))
        grown = min(grown, rows)
        return grown if grown > size else 0
    if exceeds.microbatch_size <= size * _CLOSE:
        return 0
    # Between two sizes, a line; not up to its end, which has just failed.
    share = (limit - fits.peak_bytes) / (exceeds.peak_bytes - fits.peak_bytes)
    step = int((exceeds.microbatch_size - size) * min(share, 0.8))
    return size + step if step else 0


def _bytes(variable: keras.Variable) -> int:
    count = 1
    for dimension in variable.shape:
        count *= dimension
    return count * tf.as_dtype(variable.dtype).size
