"""A picture of the memory of a step."""

from typing import Any

import numpy as np

from keras_tfopt.errors import MissingExtraError
from keras_tfopt.memory.address_map import address_map
from keras_tfopt.memory.attribution import KINDS
from keras_tfopt.memory.memory_trace import MemoryEntry
from keras_tfopt.memory.memory_trace import MemoryTrace

_MIB = 2**20
_INCHES = (10, 8)
_DPI = 100


def draw(trace: MemoryTrace) -> np.ndarray:
    """Draws bytes over time, and tensors by time and address.

    Args:
        trace: `MemoryTrace`.

    Returns:
        uint8 array of shape `(height, width, 4)`.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "Pictures are drawn by matplotlib, which is not installed. "
            "Install it with `pip install 'keras-tfopt[plots]'`."
        ) from error
    # Not through pyplot, which would choose a window and keep the figure.
    figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True)
    _draw_timeline(above, trace)
    _draw_map(below, trace)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba()).copy()


def _draw_timeline(axes: Any, trace: MemoryTrace) -> None:
    timeline = trace.timeline
    milliseconds = np.asarray(timeline.seconds) * 1e3
    in_use = np.asarray(timeline.in_use_bytes) / _MIB
    axes.fill_between(milliseconds, in_use, step="post", alpha=0.3)
    axes.plot(milliseconds, in_use, drawstyle="steps-post", linewidth=1)
    axes.plot(milliseconds[timeline.peak], in_use[timeline.peak], "v")
    axes.set_ylabel("MiB in use")
    axes.set_ylim(bottom=0)
    axes.set_title(
        f"Peak {trace.peak_bytes / _MIB:.1f} MiB on {trace.device}, "
        f"{trace.unattributed_ratio:.1%} without a layer"
    )


def _draw_map(axes: Any, trace: MemoryTrace) -> None:
    found = address_map(trace)
    end = trace.timeline.seconds[-1]
    for index, kind in enumerate(KINDS):
        boxes = [
            _box(entry, offset, end)
            for entry, offset in zip(found.entries, found.offsets, strict=True)
            if entry.kind == kind
        ]
        for number, (span, height) in enumerate(boxes):
            axes.broken_barh(
                [span],
                height,
                color=f"C{index}",
                label=kind if not number else None,
            )
    for border in found.borders:
        axes.axhline(border / _MIB, color="black", linewidth=0.5)
    axes.set_xlabel("ms")
    axes.set_ylabel("address, MiB; regions are apart")
    if found.entries:
        axes.set_ylim(0, found.borders[-1] / _MIB)
        axes.legend(loc="upper right", fontsize="small")


def _box(
    entry: MemoryEntry, offset: int, end: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Returns the span of a tensor in time, and in addresses."""
    begin = entry.begin or 0.0
    last = end if entry.end is None else min(entry.end, end)
    height = offset / _MIB, entry.bytes / _MIB
    return (begin * 1e3, (last - begin) * 1e3), height
