"""The figures about backups mean what their names say."""

import io

import rich.console

from keras_tfopt.benchmark import backup


def test_measures_both_and_prints_a_table():
    console = rich.console.Console(file=io.StringIO(), width=80)
    results = backup.run_benchmark(console, width=64, depth=3, idle_steps=20)
    assert {"stock Keras", "ours"} <= set(results) <= {
        "stock Keras", "ours", "Orbax",
    }  # fmt: skip
    for costs in results.values():
        assert costs.parameters == 3 * (64 * 64 + 64)
        # Weights and two slots, of four bytes each.
        assert costs.bytes > 12 * costs.parameters
        assert costs.write > 0
        assert costs.restore is None or costs.restore > 0
    assert results["ours"].restore > 0
    printed = console.file.getvalue()
    assert "training waits" in printed
    assert "stock Keras" in printed
