"""The table says what the account says."""

from keras_tfopt.compilation import CompilationStats
from keras_tfopt.compilation.fusion import FusionFigures
from keras_tfopt.compilation.report import report_table


def test_table():
    shapes = tuple((("float32", (rows,)),) for rows in range(7))
    train = CompilationStats(
        successes=3,
        failures=1,
        compile_seconds=1.5,
        training_seconds=6.0,
        compiled_steps=40,
        compiled_shapes=shapes,
        fusion=FusionFigures(4, 11, 2**19),
    )
    lines = report_table({"train": train, "test": CompilationStats()})
    cells = [line.rsplit(None, 2) for line in lines.splitlines()]
    assert cells[:13] == [
        ["XLA", "train", "test"],
        ["compilations tried", "4", "0"],
        ["that went well", "3", "0"],
        ["that failed", "1", "0"],
        ["success ratio", "75.0%", "-"],
        ["seconds of compiling", "1.50", "0.00"],
        ["seconds of steps, with that", "6.00", "0.00"],
        ["share of compiling", "25.0%", "-"],
        ["compiled steps", "40", "0"],
        ["compiled shapes", "7", "0"],
        ["shapes left uncompiled", "0", "0"],
        ["fusions", "4", "-"],
        ["fused operations", "11", "-"],
    ]
    assert cells[13] == ["not materialized, MiB, estimated", "0.500", "-"]
    assert lines.splitlines()[14] == "train, compiled: float32[0]"
    assert lines.splitlines()[-1] == "train, compiled: 2 more"
