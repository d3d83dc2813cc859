"""The modes of XLA are measured side by side."""

import re

import rich.console

from keras_tfopt.benchmark.compilation import figures_table
from keras_tfopt.benchmark.compilation import measure_modes
from keras_tfopt.benchmark.compilation_cache import CacheFigures
from keras_tfopt.benchmark.compilation_cache import cache_table
from keras_tfopt.benchmark.networks import TINY


def test_modes_of_a_network():
    modes = ("off", "on", "auto")
    figures = measure_modes(TINY, rounds=1, modes=modes)
    assert tuple(row.mode for row in figures) == modes
    off, on, auto = figures
    assert all(row.milliseconds > 0 for row in figures)
    assert (off.compiled, on.compiled) == ("none", "whole")
    assert off.compile_seconds == 0
    assert min(on.compile_seconds, auto.compile_seconds) > 0
    console = rich.console.Console(width=100, record=True)
    console.print(figures_table(figures))
    console.print(cache_table([CacheFigures("other", 4.0, 3.0)]))
    text = console.export_text()
    cells = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in text.splitlines()
        if "tiny" in line
    ]
    assert [row[1] for row in cells] == list(modes)
    assert [row[7] for row in cells[:2]] == ["none", "whole"]
    assert re.search("other.* 4.00 .* 3.00 .* 0.75 ", text)
    best = min(off.milliseconds, on.milliseconds)
    expected = [f"{row.milliseconds / best:.3f}" for row in figures]
    assert [row[4] for row in cells] == expected
    assert "1.000" in expected[:2]
