"""How a training step runs, as data."""

import dataclasses
import numbers
from typing import Any
from typing import TypeAlias


def check_positive_integer(name: str, value: Any) -> None:
    """Raises if an optional setting is not a positive integer.

    Args:
        name: String. The argument's name, for the message.
        value: The argument. `None` means "not set" and passes.

    Raises:
        ValueError: If `value` is not an integer of at least 1.
    """
    if value is None:
        return
    is_integer = isinstance(value, numbers.Integral)
    if not is_integer or isinstance(value, bool) or value < 1:
        raise ValueError(
            f"Invalid value for argument `{name}`. "
            f"Received: {name}={value!r} (of type {type(value).__name__}). "
            "Expected: an integer of at least 1, or None to leave it unset."
        )


_INTEGERS = (
    "accumulation_steps",
    "microbatch_size",
    "gather_steps",
    "padded_rows",
)

Remat: TypeAlias = int | tuple[str | tuple[str, str], ...] | None


def normalized_remat(remat: Any) -> Remat:
    """Returns what a plan recomputes, as hashable data.

    Args:
        remat: As for `ExecutionPlan`; lists stand for tuples.

    Raises:
        ValueError: If it is none of what is expected.
    """
    if remat is None:
        return None
    is_integer = isinstance(remat, numbers.Integral)
    if is_integer and not isinstance(remat, bool) and remat >= 1:
        return int(remat)
    if isinstance(remat, (list, tuple)) and remat:
        entries = tuple(
            tuple(entry) if isinstance(entry, list) else entry
            for entry in remat
        )
        if all(_is_segment(entry) for entry in entries):
            return entries
    raise ValueError(
        "Invalid value for argument `remat`. "
        f"Received: remat={remat!r}. Expected: None; an integer of at least "
        "1, the number of layers that are recomputed together; or a tuple of "
        "names of layers and pairs (first, last) of such names."
    )


def _is_segment(entry: Any) -> bool:
    if isinstance(entry, str):
        return True
    is_pair = isinstance(entry, tuple) and len(entry) == 2
    return is_pair and all(isinstance(name, str) for name in entry)


Offload: TypeAlias = tuple[str, ...] | None

# What can be in the memory of the host, the cheapest to move first.
OFFLOADABLE = ("activations", "slots", "frozen_weights")
# Of these, what moves while layers are computed: at their calls, and when they
# are computed again.
_STREAMED = frozenset({"activations", "frozen_weights"})


def normalized_offload(offload: Any) -> Offload:
    """Returns what a plan keeps on the host, as hashable data.

    Args:
        offload: As for `ExecutionPlan`; one name stands for a tuple of it.

    Raises:
        ValueError: If it is none of what is expected.
    """
    if offload is None:
        return None
    names = (offload,) if isinstance(offload, str) else offload
    if isinstance(names, (list, tuple)) and names:
        if all(name in OFFLOADABLE for name in names):
            return tuple(name for name in OFFLOADABLE if name in names)
    raise ValueError(
        "Invalid value for argument `offload`. "
        f"Received: offload={offload!r}. Expected: None, or a tuple of some of "
        f"{OFFLOADABLE}."
    )


def extras_of(remat: Remat, offload: Offload) -> str:
    """Returns what saves memory beside micro-batches, in words.

    Args:
        remat: As for `ExecutionPlan`.
        offload: As for `ExecutionPlan`.
    """
    names = ["remat"] if remat is not None else []
    if offload is not None:
        names.append(f"offload of {', '.join(offload)}".replace("_", " "))
    return f" with {' and '.join(names)}" if names else ""


@dataclasses.dataclass(frozen=True)
class ExecutionPlan:
    """Says how one training step runs.

    A plan changes what a step costs in memory and time; only `gather_steps`
    changes what it computes. Nothing else decides how a step runs, so that a
    recovery, a schedule or a search only has to propose another plan.

    Example:

    ```python
    from keras_tfopt import ExecutionPlan

    plan = ExecutionPlan(microbatch_size=32)
    assert plan.is_split
    assert not ExecutionPlan().is_split
    ```

    Args:
        accumulation_steps: Integer or `None`. Number of micro-batches that each
            batch is split into; their sizes differ by at most one row. Defaults
            to `None`, which means no splitting.
        microbatch_size: Integer or `None`. Rows of a micro-batch; the last one
            may be smaller. Excludes `accumulation_steps`. Defaults to `None`.
        jit_compile: Boolean. Whether XLA compiles the pure part of the step.
            Defaults to `False`.
        gather_steps: Integer or `None`. Number of delivered batches that make
            one update. Defaults to `None`, which means one.
        remat: What is computed again in the backward pass instead of kept. An
            integer: every so many layers together. A tuple: the layers of these
            names, each by itself, and for each pair of names all that a
            functional model calls from the first to the last, together.
            Defaults to `None`, which means nothing.
        padded_rows: Integer or `None`. Rows that each micro-batch, or the whole
            batch, is padded to for XLA; the padding counts nowhere. What
            `callbacks.XLACompilation(on_new_shape="pad")` sets for a batch.
            Defaults to `None`, which means no padding.
        offload: Tuple of what is in the memory of the host in place of the
            device's. `"activations"`: what is kept for layers to be computed
            again, their inputs. `"slots"`: the optimizer's, which then updates
            there. `"frozen_weights"`: those of layers that do not train; they
            come to the device for each call of what is recomputed. The first
            and the last need `remat`, and run without XLA, which has no
            operation that leaves the device. Defaults to `None`, which means
            nothing.

    Raises:
        ValueError: If a number is not a positive integer, if both ways of
            splitting are given, if `remat` or `offload` is something else, or
            if they do not go together.
    """

    accumulation_steps: int | None = None
    microbatch_size: int | None = None
    jit_compile: bool = False
    gather_steps: int | None = None
    remat: Remat = None
    padded_rows: int | None = None
    offload: Offload = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "remat", normalized_remat(self.remat))
        object.__setattr__(self, "offload", normalized_offload(self.offload))
        self._check_offload()
        for name in _INTEGERS:
            value = getattr(self, name)
            check_positive_integer(name, value)
            if value is not None:
                # NumPy's integers would carry their widths into tensors.
                object.__setattr__(self, name, int(value))
        if (
            self.accumulation_steps is not None
            and self.microbatch_size is not None
        ):
            raise ValueError(
                "Arguments `accumulation_steps` and `microbatch_size` exclude "
                "each other. Received: "
                f"accumulation_steps={self.accumulation_steps}, "
                f"microbatch_size={self.microbatch_size}. Expected: one of "
                "them. Give the number of micro-batches or their size."
            )

    def _check_offload(self) -> None:
        if not self.streams:
            return
        if self.remat is None:
            raise ValueError(
                "What is offloaded is fetched where layers are computed again. "
                f"Received: offload={self.offload} with remat=None. Expected: "
                "`remat`, such as 1 for each layer by itself, or "
                "offload=('slots',)."
            )
        if self.jit_compile:
            raise ValueError(
                "XLA compiles for one device, and has no operation that leaves "
                f"it. Received: offload={self.offload} with jit_compile=True. "
                "Expected: jit_compile=False, or offload=('slots',)."
            )

    @property
    def streams(self) -> bool:
        """Whether tensors go to the host and back within a step."""
        return not _STREAMED.isdisjoint(self.offload or ())

    def offloads(self, name: str) -> bool:
        """Whether something is in the memory of the host.

        Args:
            name: String. One of `OFFLOADABLE`.
        """
        return name in (self.offload or ())

    @property
    def extras(self) -> str:
        """What saves memory beside micro-batches, in words."""
        return extras_of(self.remat, self.offload)

    def recomputing(self, remat: Remat) -> "ExecutionPlan":
        """Returns this plan with another `remat`.

        Args:
            remat: As for `ExecutionPlan`. Without any, nothing is offloaded
                that needs it.
        """
        offload = self.offload
        if remat is None and offload is not None:
            offload = tuple(n for n in offload if n not in _STREAMED) or None
        return dataclasses.replace(self, remat=remat, offload=offload)

    def compiled(self, jit_compile: bool) -> "ExecutionPlan":
        """Returns this plan with XLA, if it goes with XLA, or without.

        Args:
            jit_compile: Boolean.
        """
        is_possible = jit_compile and not self.streams
        return dataclasses.replace(self, jit_compile=is_possible)

    @property
    def is_split(self) -> bool:
        """Whether batches are split into micro-batches."""
        return self.accumulation_steps is not None or (
            self.microbatch_size is not None
        )

    @property
    def gathers(self) -> bool:
        """Whether more than one delivered batch makes an update."""
        return (self.gather_steps or 1) > 1

    def rows_of_microbatch(self, rows: int) -> int:
        """Returns the rows of the largest micro-batch of a batch.

        Args:
            rows: Integer. Rows of the batch.
        """
        if self.microbatch_size is not None:
            return min(self.microbatch_size, rows)
        return -(-rows // (self.accumulation_steps or 1))

    def split_like(self, other: "ExecutionPlan") -> "ExecutionPlan":
        """Returns this plan with the micro-batches of another.

        Args:
            other: `ExecutionPlan`.
        """
        return dataclasses.replace(
            self,
            accumulation_steps=other.accumulation_steps,
            microbatch_size=other.microbatch_size,
        )


@dataclasses.dataclass(frozen=True)
class PlanEvent:
    """A change of plan, or the decision to keep it, with its reason.

    Attributes:
        step: Integer. Optimizer updates made before the change.
        reason: String. Why the plan changed.
        old: `ExecutionPlan` before.
        new: `ExecutionPlan` after; the same where one was kept.
        seconds: Float. What the change cost in wall time.
    """

    step: int
    reason: str
    old: ExecutionPlan
    new: ExecutionPlan
    seconds: float
