"""Finding the largest micro-batch that fits, before the first step."""

import dataclasses
import gc
import time
from typing import Any

import keras

from keras_tfopt import _compat
from keras_tfopt.accumulation.split import check_rows
from keras_tfopt.accumulation.split import take_rows
from keras_tfopt.errors import OutOfMemoryError
from keras_tfopt.memory.allocator import read_allocator_stats
from keras_tfopt.memory.limit import default_device
from keras_tfopt.memory.limit import device_limit_bytes
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.batch import to_tensors
from keras_tfopt.training.failure import Remedy
from keras_tfopt.training.memory_probe import Probe
from keras_tfopt.training.memory_probe import Prober
from keras_tfopt.training.memory_probe import search
from keras_tfopt.training.remat import lowest_remat

_MIB = 2**20

# A choice that computes more must be faster by this, beyond what times scatter.
_CLEARLY_FASTER = 1.1


@dataclasses.dataclass(frozen=True)
class MemoryPlan:
    """The plan that a search chose, and what it measured.

    Attributes:
        plan: `ExecutionPlan`.
        limit_bytes: Integer. What the step may use.
        commit_bytes: Integer. What the optimizer's update needs, a bound.
        probes: List of `Probe`, in the order of the search.
        seconds: Float. What the search took.
        reason: String. Why this plan, where there was a choice.
    """

    plan: ExecutionPlan
    limit_bytes: int
    commit_bytes: int
    probes: list[Probe]
    seconds: float
    reason: str = ""

    def __str__(self) -> str:
        """Returns the search as lines of text."""
        lines = [f"limit {self.limit_bytes / _MIB:.1f} MiB"]
        for probe in self.probes:
            again = " with remat" if probe.remat is not None else ""
            lines.append(
                f"micro-batch of {probe.microbatch_size}{again}: "
                f"{probe.peak_bytes / _MIB:.1f} MiB"
            )
        size = self.plan.microbatch_size or "the whole batch"
        again = " with remat" if self.plan.remat is not None else ""
        lines.append(f"chosen: {size}{again}, in {self.seconds:.1f} s")
        if self.reason:
            lines.append(self.reason)
        return "\n".join(lines)


def plan_memory(
    model: keras.Model,
    batch: Any,
    *,
    max_utilization: float = 0.85,
    limit_bytes: int | None = None,
    remat: bool = True,
) -> MemoryPlan:
    """Finds the fastest plan that fits, without running out of memory.

    The pure step writes nothing, so it can be run for its peak alone. Sizes are
    doubled as long as twice the peak would still fit, and then approached from
    below in proportion: a line through small sizes errs by up to half.

    The whole batch is chosen where it fits. Where it does not, the largest
    micro-batch that fits as it is, or the largest one that fits with
    rematerialization, whichever was clearly faster when measured.

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
        remat: Boolean. Whether rematerialization may be chosen. Defaults to
            `True`.

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
    plain = Prober(model, batch, device)
    commit_bytes = plain.commit_bytes()
    found = search(plain, limit) if commit_bytes <= limit else None
    probes = list(plain.probes)
    reason = ""
    if remat and commit_bytes <= limit:
        is_whole = found is not None and found.microbatch_size == plain.rows
        if not is_whole:
            other = _search_remat(model, batch, device, limit, found, probes)
            found, reason = _choose(found, other)
    if found is None:
        raise OutOfMemoryError(
            "A step does not fit into memory with one row at a time. Received: "
            f"a limit of {limit} bytes; the optimizer needs {commit_bytes}, "
            f"probed {probes}. Expected: a higher limit or a smaller model."
        )
    size = found.microbatch_size
    plan = ExecutionPlan(
        microbatch_size=None if size == plain.rows else size,
        jit_compile=bool(model.jit_compile),
        remat=found.remat,
    )
    seconds = time.perf_counter() - start
    return MemoryPlan(plan, limit, commit_bytes, probes, seconds, reason)


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
        remat: Boolean. As for `plan_memory`. Defaults to `True`.
    """

    def __init__(self, max_utilization: float, remat: bool = True) -> None:
        check_utilization(max_utilization)
        self._remat = remat
        self._max_utilization = max_utilization

    @property
    def decides_alike(self) -> bool:
        """Whether workers decide so alike: each measures for itself."""
        return False

    def prepare(
        self, model: keras.Model, batch: Any, plan: ExecutionPlan
    ) -> tuple[ExecutionPlan, str] | None:
        """Returns the fastest plan that fits."""
        found = plan_memory(
            model,
            batch,
            max_utilization=self._max_utilization,
            remat=self._remat and plan.remat is None,
        )
        reason = (
            f"planned for {found.limit_bytes / _MIB:.0f} MiB with "
            f"{len(found.probes)} probes"
        )
        if found.reason:
            reason += f"; {found.reason}"
        planned = plan.split_like(found.plan)
        if found.plan.remat is not None:
            planned = dataclasses.replace(planned, remat=found.plan.remat)
        return planned, reason


def _search_remat(
    model: keras.Model,
    batch: Any,
    device: str,
    limit: int,
    plain: Probe | None,
    probes: list[Probe],
) -> Probe | None:
    """Returns the probe of the largest size that fits with remat.

    Args:
        model: A compiled Keras model.
        batch: Nest of tensors.
        device: String.
        limit: Integer. Bytes.
        plain: `Probe` of the largest size that fits without, or `None`.
        probes: List that takes the probes.
    """
    size = 1 if plain is None else plain.microbatch_size
    remat = lowest_remat(model, take_rows(batch, 0, size))
    if remat is None:
        return None
    prober = Prober(model, batch, device, remat)
    found = search(prober, limit, size)
    probes += prober.probes
    return found


def _choose(
    plain: Probe | None, other: Probe | None
) -> tuple[Probe | None, str]:
    """Returns the better of two probes, and why."""
    if other is None:
        return plain, ""
    if plain is None:
        return other, "without remat not even one row at a time fits"
    figures = (
        f"{other.microbatch_size} rows at a time with remat make "
        f"{other.rows_per_second:.0f} rows a second, "
        f"{plain.microbatch_size} without {plain.rows_per_second:.0f}"
    )
    is_faster = other.rows_per_second > _CLEARLY_FASTER * plain.rows_per_second
    return (other if is_faster else plain), figures


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
