import numpy as np
import pytest

from keras_tfopt.telemetry.replica_figures import ReplicaFigures


def test_shares():
    # Four steps of 2 s, half a second of it communication.
    sums = np.array([4.0, 8.0, 2.0, 400.0, 2.0, 4.0, 6.0])
    figures = ReplicaFigures.of(sums)
    assert figures.steps == 4
    assert figures.communication_time_ratio == 0.25
    assert figures.reduced_bytes == 100.0
    assert figures.compute_seconds == (0.5, 1.0, 1.5)
    assert figures.load_imbalance_ratio == pytest.approx(0.5)
    assert figures.slowest == 2
    assert {
        (r.name, *r.labels.values()) for r in figures.metric_readings()
    } == {
        ("communication_time_ratio", "step"),
        ("load_imbalance_ratio",),
        ("replica_compute_seconds", "0"),
        ("replica_compute_seconds", "1"),
        ("replica_compute_seconds", "2"),
    }


def test_nothing_is_known_of_no_steps():
    assert ReplicaFigures.of(np.zeros(6)) is None


def test_times_of_zero_have_no_shares():
    figures = ReplicaFigures.of(np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0]))
    assert figures.communication_time_ratio is None
    assert figures.load_imbalance_ratio is None
