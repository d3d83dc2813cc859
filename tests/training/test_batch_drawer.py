"""Batches come in order, all of them once, however they are drawn."""

import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt.training.batch_drawer import BatchDrawer

ROWS = np.arange(22, dtype="float32").reshape(11, 2)


def dense(rows):
    return tf.data.Dataset.from_tensor_slices((rows, {"y": rows[:, 0]}))


DATASETS = {
    "last batch short": lambda: dense(ROWS).batch(3),
    "known shapes": lambda: dense(ROWS[:9]).batch(3, drop_remainder=True),
    "unknown length": lambda: dense(ROWS).batch(2).filter(lambda *_: True),
    "strings": lambda: tf.data.Dataset.from_tensor_slices(list("abcde")),
    "ragged": lambda: tf.data.Dataset.from_tensor_slices(
        tf.ragged.constant([[1], [2, 3], [], [4, 5, 6], [7]])
    ),
    "one of them": lambda: dense(ROWS).batch(11),
}


def drawn(iterator, count):
    draw = BatchDrawer()
    calls = []
    while True:
        try:
            calls.append(draw(iterator, count))
        except StopIteration:
            return calls


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("name", DATASETS)
def test_equals_drawing_one_by_one(name, count):
    expected = list(DATASETS[name]())
    calls = drawn(iter(DATASETS[name]()), count)
    sizes = [len(batches) for batches in calls]
    assert sizes[:-1] == [count] * (len(sizes) - 1)
    batches = [batch for batches in calls for batch in batches]
    assert len(batches) == len(expected)
    for batch, wanted in zip(batches, expected, strict=True):
        tf.nest.assert_same_structure(batch, wanted)
        for leaf, right in zip(
            tf.nest.flatten(batch, expand_composites=True),
            tf.nest.flatten(wanted, expand_composites=True),
            strict=True,
        ):
            np.testing.assert_array_equal(leaf, right)


def test_draws_from_any_iterator():
    sizes = [len(call) for call in drawn(iter([(ROWS,)] * 5), 2)]
    assert sizes == [2, 2, 1]


def test_draws_no_further_than_asked():
    iterator = iter(dense(ROWS).batch(1))
    BatchDrawer()(iterator, 3)
    np.testing.assert_array_equal(next(iterator)[0], ROWS[3:4])


def test_is_traced_once_for_all_epochs():
    draw = BatchDrawer()
    data = dense(ROWS).batch(3)
    for _ in range(3):
        draw(iter(data), 4)
    assert draw._draw_many.experimental_get_tracing_count() == 1


def test_an_error_of_the_pipeline_passes():
    def check(x, y):
        tf.debugging.assert_less(x, 10.0)
        return x, y

    iterator = iter(dense(ROWS).map(check))
    draw = BatchDrawer()
    draw(iterator, 4)
    with pytest.raises(tf.errors.InvalidArgumentError):
        draw(iterator, 4)
