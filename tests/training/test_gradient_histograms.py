import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt.training.gradient_histograms import BINS
from keras_tfopt.training.gradient_histograms import histogram


def test_values_are_counted_in_equal_bins():
    values = np.r_[0.0, 0.5, 1.0, 1.0, 29.5, 30.0].reshape(2, 3)
    low, high, *counts = histogram(tf.constant(values, tf.float16)).numpy()
    assert (low, high) == (0, 30)
    # The last bin has its upper end too, as NumPy's.
    assert counts == np.histogram(values, BINS)[0].tolist()
    assert counts[:2] + counts[-1:] == [2, 2, 2]


@pytest.mark.parametrize("value", [0.0, -3.0, 3e38])
def test_equal_values(value):
    row = histogram(tf.fill((2, 3), value)).numpy()
    np.testing.assert_allclose(row[:2], value, rtol=1e-6)
    assert row[2:].tolist() == [6] + [0] * (BINS - 1)


def test_what_is_not_finite_is_left_out():
    broken = [np.nan, np.inf, -np.inf]
    row = histogram(tf.constant([1.0, 2.0, *broken])).numpy()
    assert row.tolist() == [1, 2, 1, *[0] * (BINS - 2), 1]
    assert not histogram(tf.constant(broken)).numpy()[2:].any()
    assert not histogram(tf.zeros((0, 2))).numpy()[2:].any()


def test_a_range_beyond_float32():
    counts = histogram(tf.constant([-3e38, 0.0, 3e38])).numpy()[2:]
    assert np.flatnonzero(counts).tolist() == [0, BINS // 2, BINS - 1]
