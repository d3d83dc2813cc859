"""Finding the largest micro-batch that fits, before the first step."""

from collections.abc import Sequence
import dataclasses
import gc
import time
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.accumulation import TRAINING
from keras_tfopt.accumulation import SplitStep
from keras_tfopt.accumulation.split import check_rows
from keras_tfopt.accumulation.split import take_rows
from keras_tfopt.errors import OutOfMemoryError
from keras_tfopt.errors import is_out_of_memory
from keras_tfopt.memory.allocator import PeakReading
from keras_tfopt.memory.allocator import PeakWindow
from keras_tfopt.memory.allocator import read_allocator_stats
from keras_tfopt.memory.limit import default_device
from keras_tfopt.memory.limit import device_limit_bytes
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.batch import spec_of
from keras_tfopt.training.batch import static_rows
from keras_tfopt.training.batch import to_tensors
from keras_tfopt.training.commit import CommitLog
from keras_tfopt.training.commit import awaited
from keras_tfopt.training.failure import Remedy
from keras_tfopt.training.step_function import as_function
from keras_tfopt.training.step_function import pure_split_function
from keras_tfopt.training.step_function import split_step

# Micro-batches in a probe: fewer of them peak lower than a whole step does.
_MICROBATCHES = 16

# Runs of a probe: what happens side by side by chance adds to a peak.
_RUNS = 2

# A size that is this close to what the limit allows is good enough.
_CLOSE = 1.1


@dataclasses.dataclass(frozen=True)
class Probe:
    """A measured micro-batch.

    Attributes:
        microbatch_size: Integer. Its rows.
        peak_bytes: Integer. Most bytes in use at once, all tensors included.
    """

    microbatch_size: int
    peak_bytes: int


@dataclasses.dataclass(frozen=True)
class MemoryPlan:
    """The plan that a search chose, and what it measured.

    Attributes:
        plan: `ExecutionPlan`.
        limit_bytes: Integer. What the step may use.
        commit_bytes: Integer. What the optimizer's update needs, a bound.
        probes: List of `Probe`, in the order of the search.
        seconds: Float. What the search took.
    """

    plan: ExecutionPlan
    limit_bytes: int
    commit_bytes: int
    probes: list[Probe]
    seconds: float

    def __str__(self) -> str:
        """Returns the search as lines of text."""
        lines = [f"limit {self.limit_bytes / 2**20:.1f} MiB"]
        for probe in self.probes:
            lines.append(
                f"micro-batch of {probe.microbatch_size}: "
                f"{probe.peak_bytes / 2**20:.1f} MiB"
            )
        size = self.plan.microbatch_size or "the whole batch"
        lines.append(f"chosen: {size}, in {self.seconds:.1f} s")
        return "\n".join(lines)


def plan_memory(
    model: keras.Model,
    batch: Any,
    *,
    max_utilization: float = 0.85,
    limit_bytes: int | None = None,
) -> MemoryPlan:
    """Finds the largest micro-batch that fits, without running out of memory.

    The pure step writes nothing, so it can be run for its peak alone. Sizes are
    doubled as long as twice the peak would still fit, and then approached from
    below in proportion: a line through small sizes errs by up to half.

    Example:

    ```python
    import keras
    from keras_tfopt import AccumModel
    from keras_tfopt import plan_memory
    from keras_tfopt.memory import read_allocator_stats

    inputs = keras.Input((8,))
    model = AccumModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile("adam", "mse")
    batch = keras.ops.ones((64, 8)), keras.ops.ones((64, 1))
    if read_allocator_stats() is not None:
        found = plan_memory(model, batch, limit_bytes=2**30)
        model.change_plan(found.plan, "planned")
    ```

    Args:
        model: A compiled Keras model.
        batch: Nest `(x, y)` or `(x, y, sample_weight)`, as `fit` gets it.
        max_utilization: Float in (0, 1]. Share of the device's limit to use.
            Defaults to 0.85.
        limit_bytes: Integer. What the step may use; excludes
            `max_utilization`. Defaults to that share of the device's limit.

    Returns:
        `MemoryPlan`.

    Raises:
        ValueError: If an argument is out of range, if the device counts
            nothing, if the model cannot be split, or if it is under a
            distribution strategy.
        OutOfMemoryError: If not even one row fits.
    """
    strategy = _compat.strategy_of(model)
    if strategy is not None:
        raise ValueError(
            "Planning measures one device. Received: a model under "
            f"{type(strategy).__name__}. Expected: one without a distribution "
            "strategy, on a replica's share of the batch."
        )
    start = time.perf_counter()
    # Models are reference cycles: what a dead one holds would count as needed.
    gc.collect()
    device = default_device()
    limit = _limit(device, max_utilization, limit_bytes)
    batch = to_tensors(batch)
    check_rows(batch)
    prober = _Prober(model, batch, device)
    commit_bytes = prober.commit_bytes()
    size = _search(prober, limit) if commit_bytes <= limit else 0
    if not size:
        raise OutOfMemoryError(
            "A step does not fit into memory with one row at a time. Received: "
            f"a limit of {limit} bytes; the optimizer needs {commit_bytes}, "
            f"probed {prober.probes}. Expected: a higher limit or a smaller "
            "model."
        )
    plan = ExecutionPlan(
        microbatch_size=None if size == prober.rows else size,
        jit_compile=bool(model.jit_compile),
    )
    seconds = time.perf_counter() - start
    return MemoryPlan(plan, limit, commit_bytes, prober.probes, seconds)


def check_utilization(max_utilization: float) -> None:
    """Raises if a share of the device's limit is none.

    Raises:
        ValueError: If it is not in (0, 1].
    """
    if not 0 < max_utilization <= 1:
        raise ValueError(
            "Invalid value for argument `max_utilization`. Received: "
            f"max_utilization={max_utilization!r}. Expected: a share of the "
            "device's limit, in (0, 1]."
        )


class PlanAhead(Remedy):
    """Plans for the memory of the first batch instead of running out of it.

    Args:
        max_utilization: Float in (0, 1]. As for `plan_memory`.
    """

    def __init__(self, max_utilization: float) -> None:
        check_utilization(max_utilization)
        self._max_utilization = max_utilization

    def prepare(
        self, model: keras.Model, batch: Any, plan: ExecutionPlan
    ) -> tuple[ExecutionPlan, str] | None:
        """Returns the plan with the largest micro-batch that fits."""
        found = plan_memory(model, batch, max_utilization=self._max_utilization)
        return plan.split_like(found.plan), (
            f"planned for {found.limit_bytes / 2**20:.0f} MiB with "
            f"{len(found.probes)} probes"
        )


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


class _Prober:
    """Measures the peak of the pure step of a model."""

    def __init__(self, model: keras.Model, batch: Any, device: str) -> None:
        self._batch = batch
        # Monitors may reset the allocator's own peak meanwhile.
        self._window = PeakWindow(device)
        self._model = model
        self._step: SplitStep = split_step(
            model, spec_of(batch), batch, TRAINING, ExecutionPlan()
        )
        by_size = ExecutionPlan(microbatch_size=1)
        self._pure = pure_split_function(self._step, by_size)
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
                self._run(batch, tf.constant(size))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return None
        probe = Probe(size, self._stats().peak_bytes)
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

    def _await(self, batch: Any, size: tf.Tensor) -> None:
        """Holds what a step has computed when it begins to write."""
        _, outputs = awaited(self._pure(batch, size))
        with tf.control_dependencies(outputs):
            # Without an effect, nothing would be computed.
            self._log.mark()


def _search(prober: _Prober, limit: int) -> int:
    """Returns the largest size that was measured to fit, or 0."""
    fits = Probe(0, 0)
    exceeds: Probe | None = None
    size = 1
    while size:
        probe = prober.measure(size)
        if probe is not None and probe.peak_bytes <= limit:
            fits = probe
        else:
            exceeds = probe or Probe(size, 2 * limit)
        size = _next_size(fits, exceeds, limit, prober.rows)
    return fits.microbatch_size


def _next_size(
    fits: Probe, exceeds: Probe | None, limit: int, rows: int
) -> int:
    """Returns the size to measure next, or 0 when there is none."""
    size = fits.microbatch_size
    # Allocators that do not count small blocks may answer 0.
    room = limit / max(fits.peak_bytes, 1)
    if not size or room <= _CLOSE:
        return 0
    if exceeds is None:
        # A peak at most doubles with its micro-batch.
        grown = min(max(int(size * min(room, 2.0)), size + 1), rows)
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


def _limit(device: str, max_utilization: float, limit_bytes: int | None) -> int:
    check_utilization(max_utilization)
    if limit_bytes is not None and limit_bytes <= 0:
        raise ValueError(
            "Invalid value for argument `limit_bytes`. Received: "
            f"limit_bytes={limit_bytes!r}. Expected: a positive integer."
        )
    if read_allocator_stats(device) is None:
        raise ValueError(
            "Planning measures the allocator. Received: "
            f"{device}, which counts nothing. Expected: a GPU, or a CPU with "
            "TF_CPU_ALLOCATOR_USE_BFC=true in the environment before "
            "TensorFlow starts."
        )
    if limit_bytes is not None:
        return int(limit_bytes)
    limit = device_limit_bytes(device)
    if limit is None:
        raise ValueError(
            "Nothing limits the memory of the device. Received: "
            f"limit_bytes=None on {device}. Expected: `limit_bytes`, or "
            "TF_CPU_BFC_MEM_LIMIT_IN_MB in the environment before TensorFlow "
            "starts."
        )
    return int(limit * max_utilization)
