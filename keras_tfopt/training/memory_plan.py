"""Finding the largest micro-batch that fits, before the first step."""

from collections.abc import Sequence
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
from keras_tfopt.plan import Offload
from keras_tfopt.training.batch import to_tensors
from keras_tfopt.training.failure import Remedy
from keras_tfopt.training.memory_probe import Probe
from keras_tfopt.training.memory_probe import Prober
from keras_tfopt.training.memory_probe import search
from keras_tfopt.training.placement import bytes_of
from keras_tfopt.training.placement import is_computed_on_host
from keras_tfopt.training.placement import slots_of
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
            lines.append(
                f"micro-batch of {probe.microbatch_size}{probe.extras}: "
                f"{probe.peak_bytes / _MIB:.1f} MiB"
            )
        size = self.plan.microbatch_size or "the whole batch"
        chosen = f"{size}{self.plan.extras}"
        lines.append(f"chosen: {chosen}, in {self.seconds:.1f} s")
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
    offload: bool = True,
) -> MemoryPlan:
    """Finds the fastest plan that fits, without running out of memory.

    The pure step writes nothing, so it can be run for its peak alone. Sizes are
    doubled as long as twice the peak would still fit, and then approached from
    below in proportion: a line through small sizes errs by up to half.

    The whole batch is chosen where it fits. Where it does not, the largest
    micro-batch that fits as it is, the largest one that fits with
    rematerialization, or on a GPU the largest one where the host keeps what is
    computed again: the later ones where they were clearly faster when measured.
    Where none of them fits, the optimizer's slots go to the host.

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
        offload: Boolean. Whether the host may keep what a device with memory of
            its own has no room for. Defaults to `True`.

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
    candidates = _Candidates(model, batch, device, remat, offload)
    commit_bytes = candidates.plain.commit_bytes()
    found, reason = choose(candidates.search(limit, commit_bytes))
    slots_bytes = candidates.movable_slots_bytes()
    moves_slots = found is None and slots_bytes > 0
    if moves_slots:
        # Probes run with the slots where they are.
        found, reason = choose(
            candidates.search(limit + slots_bytes, commit_bytes)
        )
        reason = f"{reason}; " * bool(reason) + (
            f"the optimizer's slots, {slots_bytes / _MIB:.1f} MiB, go to the "
            "host"
        )
    probes = candidates.probes
    if found is None:
        raise OutOfMemoryError(
            "A step does not fit into memory with one row at a time. Received: "
            f"a limit of {limit} bytes; the optimizer needs {commit_bytes}, "
            f"probed {probes}. Expected: a higher limit or a smaller model."
        )
    size = found.microbatch_size
    plan = ExecutionPlan(
        microbatch_size=None if size == candidates.plain.rows else size,
        remat=found.remat,
        offload=(*(found.offload or ()), *["slots"] * moves_slots) or None,
    ).compiled(bool(model.jit_compile))
    if plan.streams and model.jit_compile:
        reason += "; without XLA, which cannot offload"
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
        offload: Boolean. As for `plan_memory`. Defaults to `True`.
    """

    def __init__(
        self,
        max_utilization: float,
        remat: bool = True,
        offload: bool = True,
    ) -> None:
        check_utilization(max_utilization)
        self._remat = remat
        self._offload = offload
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
            offload=self._offload and plan.offload is None,
        )
        reason = (
            f"planned for {found.limit_bytes / _MIB:.0f} MiB with "
            f"{len(found.probes)} probes"
        )
        if found.reason:
            reason += f"; {found.reason}"
        planned = plan.split_like(found.plan)
        jit_compile = planned.jit_compile
        planned = dataclasses.replace(
            planned.compiled(False),
            remat=found.plan.remat or plan.remat,
            offload=found.plan.offload or plan.offload,
        )
        return planned.compiled(jit_compile), reason


class _Candidates:
    """The ways to run a step in less memory, measured.

    Args:
        model: A compiled Keras model.
        batch: Nest of tensors.
        device: String.
        remat: Boolean. Whether layers may be computed again.
        offload: Boolean. Whether the host may keep something.

    Attributes:
        plain: `Prober` of the step as it is.
        probes: List of `Probe`, in the order of the search.
    """

    def __init__(
        self,
        model: keras.Model,
        batch: Any,
        device: str,
        remat: bool,
        offload: bool,
    ) -> None:
        self.plain = Prober(model, batch, device)
        self.probes: list[Probe] = []
        self._model = model
        self._batch = batch
        self._device = device
        self._recomputes = remat
        self._offloads = offload and not is_computed_on_host(model)

    def movable_slots_bytes(self) -> int:
        """Returns what leaves the device with the optimizer's slots."""
        return sum(map(bytes_of, slots_of(self._model))) * self._offloads

    def search(self, limit: int, commit_bytes: int) -> list[Probe]:
        """Returns the largest probes that fit, the simplest first.

        Args:
            limit: Integer. Bytes that a step may use.
            commit_bytes: Integer. What the update needs, whatever the step.
        """
        if commit_bytes > limit:
            return []
        found = [self._largest(self.plain, limit, 1)]
        size = 1 if found[0] is None else found[0].microbatch_size
        if not self._recomputes or size == self.plain.rows:
            return [one for one in found if one is not None]
        remat = lowest_remat(self._model, take_rows(self._batch, 0, size))
        offloads: list[Offload] = [None, ("activations",)]
        for offload in offloads[: 1 + self._offloads]:
            if remat is not None:
                prober = Prober(
                    self._model, self._batch, self._device, remat, offload
                )
                found.append(self._largest(prober, limit, size))
        return [one for one in found if one is not None]

    def _largest(self, prober: Prober, limit: int, start: int) -> Probe | None:
        known = len(prober.probes)
        found = search(prober, limit, start)
        self.probes += prober.probes[known:]
        return found


def choose(candidates: Sequence[Probe]) -> tuple[Probe | None, str]:
    """Returns the best of some probes, and why.

    Args:
        candidates: Sequence of `Probe` that fit, the simplest first. One that
            computes or moves more must be clearly faster.
    """
    if not candidates:
        return None, ""
    best = candidates[0]
    for other in candidates[1:]:
        if other.rows_per_second > _CLEARLY_FASTER * best.rows_per_second:
            best = other
    figures = [
        f"{one.microbatch_size} rows at a time{one.extras} make "
        f"{one.rows_per_second:.0f} rows a second"
        for one in candidates
    ]
    reasons = []
    if candidates[0].remat is not None:
        reasons = ["without remat not even one row at a time fits"]
        if candidates[0].offload is not None:
            reasons = ["without offload not even one row at a time fits"]
    if len(candidates) > 1:
        reasons.append(", ".join(figures))
    return best, "; ".join(reasons)


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
