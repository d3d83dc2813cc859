import keras
import numpy as np
import pytest

from keras_tfopt.telemetry.weight_drift import WeightDrift
from keras_tfopt.telemetry.weight_drift import stability_index


def variable(values):
    return keras.Variable(np.asarray(values, "float32"))


def test_index_of_shares():
    half, quarter = np.array([50, 50]), np.array([5, 15])
    assert stability_index(half, half) == 0
    # (1/4 - 1/2) log(1/2) + (3/4 - 1/2) log(3/2)
    assert stability_index(half, quarter) == pytest.approx(0.25 * np.log(3))


def test_values_that_move_by_a_decile():
    weights = variable(np.arange(100).reshape(4, 25))
    drift = WeightDrift([weights])
    assert drift.measure() == {weights.path: 0.0}
    weights.assign(weights + 10)
    # The first bin is empty now, the last has twice as many.
    expected = (0.1 - 1e-4) * np.log(0.1 / 1e-4) + 0.1 * np.log(2)
    assert drift.measure() == {weights.path: pytest.approx(expected)}
    # Another order is the same distribution.
    weights.assign(np.arange(100)[::-1].reshape(4, 25))
    assert drift.measure() == {weights.path: 0.0}


def test_ties_share_a_bin():
    # Half of a pruned variable is zero.
    weights = variable(np.r_[np.zeros(100), np.arange(1, 101)])
    drift = WeightDrift([weights])
    weights.assign(np.r_[np.arange(1, 101), np.zeros(100)])
    assert drift.measure() == {weights.path: 0.0}


def test_large_variables_are_sampled():
    values = np.linspace(-1, 1, 2**20, dtype="float32").reshape(2**12, 2**8)
    weights = variable(values)
    drift = WeightDrift([weights])
    assert drift.measure() == {weights.path: 0.0}
    # Twice as wide: 0.3 each at the ends, 0.05 each in eight bins.
    weights.assign(2 * values)
    expected = 2 * 0.2 * np.log(3) + 8 * 0.05 * np.log(2)
    # Shares of 131072 values have deviations of 0.001.
    assert drift.measure()[weights.path] == pytest.approx(expected, rel=0.05)


def test_what_has_no_distribution_is_left_out():
    left_out = [variable(np.arange(99)), variable(np.ones(200))]
    assert WeightDrift(left_out).measure() == {}
    broken = variable(np.arange(100))
    drift = WeightDrift([broken])
    broken.assign(np.full(100, np.nan))
    assert drift.measure() == {}
