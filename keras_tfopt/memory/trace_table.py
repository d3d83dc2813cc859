"""The memory of a step as a table."""

import io

import rich.console
import rich.table

from keras_tfopt.memory.memory_trace import MemoryTrace
from keras_tfopt.memory.memory_trace import summed

_MIB = 2**20
_WIDTH = 100


def trace_table(trace: MemoryTrace, rows: int) -> rich.table.Table:
    """Puts layers and kinds below each other, the largest first.

    Args:
        trace: `MemoryTrace`.
        rows: Integer. Largest number of rows.
    """
    table = rich.table.Table(
        title=f"{trace.peak_bytes / _MIB:.1f} MiB at the peak of a step, "
        f"{trace.unattributed_ratio:.1%} without a layer",
        caption="\n".join(_captions(trace)),
        caption_justify="left",
    )
    table.add_column("layer")
    table.add_column("kind")
    table.add_column("MiB", justify="right")
    table.add_column("share", justify="right")
    table.add_column("largest tensor")
    groups = summed(((e.layer, e.kind), e.bytes) for e in trace.entries)
    shown = groups.most_common(rows)
    for (layer, kind), size in shown:
        table.add_row(
            layer, kind, *_sizes(trace, size), _largest(trace, layer, kind)
        )
    rest = len(groups) - len(shown)
    if rest > 0:
        size = trace.peak_bytes - sum(size for _, size in shown)
        table.add_row(f"{rest} more", "", *_sizes(trace, size))
    return table


def as_text(table: rich.table.Table) -> str:
    """Returns a table as text."""
    text = io.StringIO()
    rich.console.Console(file=text, width=_WIDTH).print(table)
    return text.getvalue()


def _sizes(trace: MemoryTrace, size: int) -> tuple[str, str]:
    share = size / trace.peak_bytes if trace.peak_bytes else 0.0
    return f"{size / _MIB:.2f}", f"{share:.1%}"


def _largest(trace: MemoryTrace, layer: str, kind: str) -> str:
    entry = max(
        (e for e in trace.entries if (e.layer, e.kind) == (layer, kind)),
        key=lambda entry: entry.bytes,
    )
    size = f"{entry.bytes / _MIB:.2f} MiB"
    words = [size, f"{entry.dtype}{entry.shape}", entry.operation]
    # Brackets would be markup.
    return " ".join(filter(None, words)).replace("[", r"\[")


def _captions(trace: MemoryTrace) -> list[str]:
    kinds = ", ".join(
        f"{kind} {size / _MIB:.1f}" for kind, size in trace.by_kind().items()
    )
    return [
        f"MiB by kind: {kinds}.",
        "While the optimizer updates, at most "
        f"{trace.commit_bytes / _MIB:.1f} MiB are in use.",
        *trace.remarks,
    ]
