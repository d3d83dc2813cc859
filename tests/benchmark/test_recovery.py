"""Work under a limit in a process of its own, and the table of its figures."""

import io

import rich.console

from keras_tfopt.benchmark import processes
from keras_tfopt.benchmark import recovery


def test_a_process_starts_with_its_limit(tmp_path, monkeypatch):
    (tmp_path / "asked.py").write_text(
        "import os, sys\n"
        "from keras_tfopt.benchmark.processes import answer\n"
        "print('before the answer')\n"
        "names = 'TF_CPU_BFC_MEM_LIMIT_IN_MB', 'TF_CPU_ALLOCATOR_USE_BFC'\n"
        "answer([*sys.argv[1:], *map(os.environ.get, names)])\n"
    )
    monkeypatch.chdir(tmp_path)
    found = processes.run_under_limit("asked", ["one"], 12)
    assert found == ["one", "12", "true"]


def test_the_table_compares_with_stock_keras():
    figures = recovery.RecoveryFigures(
        stock_rows=1024,
        split_rows=8192,
        stock_seconds=10.0,
        failures=2,
        recovery_seconds=22.0,
        recovered_ms=51.0,
        fixed_ms=50.0,
    )
    console = rich.console.Console(file=io.StringIO(), width=120)
    console.print(recovery.figures_table(figures))
    lines = [
        line.replace("│", " ").split()
        for line in console.file.getvalue().splitlines()
        if line.startswith("│")
    ]
    assert [line[-4:] for line in lines] == [
        ["1024", "8192", "8", "rows"],
        ["20.0", "22.0", "1.10", "s"],
        ["50.0", "51.0", "1.02", "ms"],
    ]
