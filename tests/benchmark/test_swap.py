"""The table of what looking at memory and moving it costs."""

import io

import rich.console

from keras_tfopt.benchmark import swap


def test_table():
    costs = [
        swap.MemoryCosts("compaction", 1.234, "s/GiB"),
        swap.MemoryCosts("step", 10.0, "ms"),
    ]
    console = rich.console.Console(file=io.StringIO(), width=80)
    console.print(swap.costs_table(costs))
    printed = console.file.getvalue()
    assert ["1.23", "10.00"] == [
        line.split("│")[2].strip()
        for line in printed.splitlines()
        if line.startswith("│")
    ]


def test_swapping_is_measured(monkeypatch):
    monkeypatch.setattr(swap, "_SHAPE", (64, 64))
    out, back = swap.measure_swapping("host", None)
    assert out.unit == back.unit == "s/GiB"
    assert out.value > 0 and back.value > 0
