"""Shows which micro-batch fits into memory, as a table and a picture."""

import rich.console
import rich.table

from keras_tfopt.benchmark.source import load_source
from keras_tfopt.training import MemoryPlan
from keras_tfopt.training import plan_memory
from keras_tfopt.training.memory_probe import Probe

_WIDTH = 32
_MIB = 2**20


def run_fit_plan(
    console: rich.console.Console,
    source: str,
    *,
    max_utilization: float = 0.85,
    limit_bytes: int | None = None,
) -> MemoryPlan:
    """Plans for the memory of one batch and prints what was measured.

    Args:
        console: The `rich.console.Console` to print on.
        source: String. As for `load_source`.
        max_utilization: Float. As for `plan_memory`.
        limit_bytes: Integer or `None`. As for `plan_memory`.

    Returns:
        `MemoryPlan`.
    """
    model, batch = load_source(source)
    with console.status(f"measuring {source}"):
        found = plan_memory(
            model,
            batch,
            max_utilization=max_utilization,
            limit_bytes=limit_bytes,
        )
    console.print(probes_table(found))
    size = found.plan.microbatch_size
    choice = "the whole batch fits"
    if size is not None:
        choice = f"microbatch_size={size}"
    choice += found.plan.extras
    if found.reason:
        choice += f": {found.reason}"
    console.print(
        f"{choice}; measured in {found.seconds:.1f} s; the update of the "
        f"optimizer needs up to {found.commit_bytes / _MIB:.1f} MiB"
    )
    return found


def probes_table(found: MemoryPlan) -> rich.table.Table:
    """Puts the probes below each other, each with a bar up to its peak.

    Args:
        found: `MemoryPlan`.

    Returns:
        A `rich.table.Table`.
    """
    limit = found.limit_bytes
    probes = sorted(found.probes, key=_order)
    full = max([limit, *(probe.peak_bytes for probe in probes)])
    table = rich.table.Table(
        caption=f"┃ the limit of {limit / _MIB:.1f} MiB", caption_justify="left"
    )
    table.add_column("micro-batch", justify="right")
    table.add_column("peak MiB", justify="right")
    table.add_column("of the limit", justify="right")
    table.add_column("peak")
    for probe in probes:
        peak = probe.peak_bytes
        table.add_row(
            f"{probe.microbatch_size}{probe.extras}",
            f"{peak / _MIB:.1f}",
            f"{peak / limit:.0%}",
            bar(peak / full, limit / full),
            style=None if peak <= limit else "red",
        )
    return table


def _order(probe: Probe) -> tuple[str, int]:
    return probe.extras, probe.microbatch_size


def bar(share: float, mark: float, width: int = _WIDTH) -> str:
    """Returns a bar of text with a mark.

    Args:
        share: Float in [0, 1]. How much of the width is filled.
        mark: Float in [0, 1]. Where the mark stands.
        width: Integer. Characters. Defaults to 32.
    """
    filled = round(share * width)
    cells = list("█" * filled + " " * (width - filled))
    position = min(int(mark * width), width - 1)
    cells[position] = "┃"
    return "".join(cells)
