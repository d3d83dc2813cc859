"""The account of XLA as a table."""

from collections.abc import Callable
from collections.abc import Mapping

from keras_tfopt.compilation.shapes import describe_shapes
from keras_tfopt.compilation.statistics import CompilationStats

_MIB = 2**20
_ABSENT = "-"
_MAX_SHAPES = 5


def report_table(stats: Mapping[str, CompilationStats]) -> str:
    """Returns accounts side by side, and the shapes below.

    Args:
        stats: Dict of `CompilationStats`, by the name of what they are of.
    """
    rows = [["XLA", *stats]]
    for title, cell in _ROWS.items():
        rows.append([title, *(cell(entry) for entry in stats.values())])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
    for name, entry in stats.items():
        known = entry.compiled_shapes[:_MAX_SHAPES]
        lines += [f"{name}, compiled: {describe_shapes(s)}" for s in known]
        more = len(entry.compiled_shapes) - len(known)
        if more:
            lines.append(f"{name}, compiled: {more} more")
    return "\n".join(lines)


def _aligned(row: list[str], widths: list[int]) -> list[str]:
    title, *cells = row
    return [
        title.ljust(widths[0]),
        *(c.rjust(w) for c, w in zip(cells, widths[1:], strict=True)),
    ]


def _share(value: float | None) -> str:
    return _ABSENT if value is None else f"{value:.1%}"


def _of_fusion(
    name: str, scale: int = 1, digits: int = 0
) -> Callable[[CompilationStats], str]:
    def cell(entry: CompilationStats) -> str:
        if entry.fusion is None:
            return _ABSENT
        return f"{getattr(entry.fusion, name) / scale:.{digits}f}"

    return cell


_ROWS: dict[str, Callable[[CompilationStats], str]] = {
    "compilations tried": lambda s: str(s.attempts),
    "that went well": lambda s: str(s.successes),
    "that failed": lambda s: str(s.failures),
    "success ratio": lambda s: _share(s.success_ratio),
    "seconds of compiling": lambda s: f"{s.compile_seconds:.2f}",
    "seconds of steps, with that": lambda s: f"{s.training_seconds:.2f}",
    "share of compiling": lambda s: _share(s.compile_share),
    "compiled steps": lambda s: str(s.compiled_steps),
    "compiled shapes": lambda s: str(len(s.compiled_shapes)),
    "shapes left uncompiled": lambda s: str(len(s.uncompiled_shapes)),
    "fusions": _of_fusion("fusions"),
    "fused operations": _of_fusion("fused_operations"),
    "not materialized, MiB, estimated": _of_fusion(
        "unmaterialized_bytes", _MIB, 3
    ),
}
