import time

import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt.data import tune


def slow(value):
    time.sleep(0.004)
    return value


def pipeline(rows=60):
    def work(x):
        y = tf.numpy_function(slow, [x], tf.int64, stateful=False)
        return tf.ensure_shape(y, ()) * 2

    numbers = tf.data.Dataset.range(rows)
    shuffled = numbers.shuffle(rows, 3, reshuffle_each_iteration=False)
    return shuffled.map(work).batch(4)


def values(dataset):
    return np.concatenate(list(dataset.as_numpy_iterator()))


def test_delivers_the_same_in_the_same_order():
    dataset = pipeline()
    tuned = tune(dataset, elements=4)
    np.testing.assert_array_equal(values(tuned.dataset), values(dataset))


def test_figures_and_what_was_applied():
    tuned = tune(pipeline(), elements=8)
    assert tuned.after >= tuned.before > 0
    if tuned.after > tuned.before:
        assert "prefetching" in tuned.applied
    else:
        assert tuned.applied == ()
    assert any("num_parallel_calls" in line for line in tuned.advice)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ([1, 2], "Received: list"),
        (tf.data.Dataset.range(0), "an empty dataset"),
    ],
)
def test_refuses(dataset, message):
    with pytest.raises(ValueError, match=message):
        tune(dataset)
