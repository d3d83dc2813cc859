import rich.console

from keras_tfopt.benchmark import telemetry


def test_both_kinds_of_model_are_measured():
    console = rich.console.Console(record=True, width=120, quiet=False)
    found = telemetry.run_telemetry(console, rounds=1, steps=8)
    assert [figures.name for figures in found] == ["AccumModel", "Model"]
    for figures in found:
        assert figures.plain.wall_ms > 0
        assert figures.watched.processor_ms > 0
        assert figures.wall_ratio > 0
        assert 0 < figures.own_us
    printed = console.export_text()
    assert printed.count("processor") == 2
