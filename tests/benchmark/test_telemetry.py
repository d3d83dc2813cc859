import pytest
import rich.console

from keras_tfopt.benchmark import telemetry


def test_both_kinds_of_model_are_measured():
    console = rich.console.Console(record=True, width=120, quiet=False)
    found = telemetry.run_telemetry(console, rounds=1, steps=8)
    assert [figures.name for figures in found] == ["AccumModel", "Model"]
    for figures in found:
        assert figures.plain.wall_ms > 0
        assert figures.watched.processor_ms > 0
        assert figures.wall.ratio > 0
        assert figures.processor.noise >= 0
        assert 0 < figures.own_us
    printed = console.export_text()
    assert printed.count("processor") == 2


def test_what_drifts_is_no_cost():
    # Half as fast in the end as at the beginning, and 1 % for the callbacks.
    before = [1.0, 1.2, 1.4, 1.6, 1.8]
    after = [t + 0.1 for t in before]
    watched = [1.01 * (a + b) / 2 for a, b in zip(before, after, strict=True)]
    found = telemetry.compare(before, watched, after)
    assert found.ratio == pytest.approx(1.01)
    assert 0 < found.noise < 0.02
