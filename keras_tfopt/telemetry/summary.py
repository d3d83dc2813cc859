"""What happened in a training, what it cost, and what to do about it."""

from collections.abc import Sequence
import dataclasses

from keras_tfopt.plan import PlanEvent
from keras_tfopt.telemetry.history import Snapshot

_MIB = 2**20
# From here on the alerts of the catalogue speak of it, too.
_MUCH_WAITING = 0.10
_MUCH_COMPILING = 0.05
_MUCH_TALKING = 0.20
_MUCH_IMBALANCE = 0.10


@dataclasses.dataclass(frozen=True)
class SummaryRow:
    """One line of a summary.

    Attributes:
        what: String.
        figure: String.
        advice: String. Defaults to `""`.
    """

    what: str
    figure: str
    advice: str = ""


def summary_rows(
    first: Snapshot, last: Snapshot, changes: Sequence[PlanEvent]
) -> list[SummaryRow]:
    """Returns what is known of a training; nothing else.

    Args:
        first: `Snapshot` when it began.
        last: `Snapshot` when it ended.
        changes: Sequence of `PlanEvent`.
    """
    return [
        *_work(first, last),
        *_waiting(last),
        *_memory(last),
        *_compilation(first, last),
        *_replicas(last),
        *_plan(changes),
        *_accidents(first, last),
    ]


def _work(first: Snapshot, last: Snapshot) -> list[SummaryRow]:
    seconds = last.time - first.time
    updates = _gain(first, last, "steps_total")
    rows = _gain(first, last, "samples_total")
    if not updates or seconds <= 0:
        return []
    figure = f"{updates:.0f} in {seconds:.1f} s"
    if rows:
        figure += f", {rows / seconds:.0f} rows a second"
    return [SummaryRow("updates", figure)]


def _waiting(last: Snapshot) -> list[SummaryRow]:
    share = _value(last, "data_wait_ratio")
    if share is None:
        return []
    advice = ""
    if share > _MUCH_WAITING:
        advice = (
            "prefetch, cache, or map in parallel; the device waits for the "
            "input pipeline"
        )
    return [SummaryRow("waiting for data", f"{share:.0%}", advice)]


def _memory(last: Snapshot) -> list[SummaryRow]:
    rows = []
    limits = last.of("memory_limit_bytes")
    for labels, peak in last.of("memory_allocated_peak_bytes").items():
        figure = f"{peak / _MIB:.0f} MiB"
        if limits.get(labels):
            figure += f" of {limits[labels] / _MIB:.0f}"
        rows.append(SummaryRow(f"peak of {dict(labels)['device']}", figure))
    return rows


def _compilation(first: Snapshot, last: Snapshot) -> list[SummaryRow]:
    attempts = _gain(first, last, "xla_compilations_total")
    if not attempts:
        return []
    seconds = _gain(first, last, "xla_compile_seconds_total")
    figure = f"{attempts:.0f} in {seconds:.1f} s"
    share = _value(last, "xla_compile_time_ratio") or 0.0
    advice = ""
    if share > _MUCH_COMPILING:
        advice = "fewer shapes, persist_compilations(), or XLA off"
    return [SummaryRow("compilations", figure, advice)]


def _replicas(last: Snapshot) -> list[SummaryRow]:
    rows = []
    share = _value(last, "communication_time_ratio")
    if share is not None:
        advice = "larger batches for each" if share > _MUCH_TALKING else ""
        rows.append(SummaryRow("communication", f"{share:.0%}", advice))
    excess = _value(last, "load_imbalance_ratio")
    if excess is not None:
        advice = "look at its device" if excess > _MUCH_IMBALANCE else ""
        figure = f"{excess:.0%} longer than the mean"
        rows.append(SummaryRow("slowest replica", figure, advice))
    return rows


def _plan(changes: Sequence[PlanEvent]) -> list[SummaryRow]:
    return [
        SummaryRow(
            f"plan at update {change.step}",
            change.reason,
            f"cost {change.seconds:.1f} s" if change.seconds >= 0.1 else "",
        )
        for change in changes
    ]


def _accidents(first: Snapshot, last: Snapshot) -> list[SummaryRow]:
    rows = []
    recoveries = _gain(first, last, "oom_recoveries_total")
    if recoveries:
        size = _value(last, "microbatch_size")
        advice = (
            "" if size is None else f"start with microbatch_size={size:.0f}"
        )
        rows.append(
            SummaryRow("out of memory, recovered", f"{recoveries:.0f}", advice)
        )
    refused = _gain(first, last, "nonfinite_steps_total")
    if refused:
        advice = "look at the batches, or lower the learning rate"
        rows.append(SummaryRow("not finite", f"{refused:.0f}", advice))
    return rows


def _gain(first: Snapshot, last: Snapshot, name: str) -> float:
    """Returns what a counter gained, over all labels."""
    return sum(last.of(name).values()) - sum(first.of(name).values())


def _value(snapshot: Snapshot, name: str) -> float | None:
    return next(iter(snapshot.of(name).values()), None)
