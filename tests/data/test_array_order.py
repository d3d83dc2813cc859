"""Arrays come in an order that a seed and a number give."""

import numpy as np
import tensorflow as tf

from keras_tfopt.data.array_order import ArrayOrder

X = np.arange(10, dtype="float32")


def _epoch(order, number):
    return [
        (x.numpy().tolist(), y["y"].numpy().tolist())
        for x, y in order.dataset(number)
    ]


def test_each_pass_has_each_row_once_and_an_order_of_its_own():
    order = ArrayOrder((X, {"y": X * 2}), 10, 4, seed=5)
    first, second = _epoch(order, 0), _epoch(order, 1)
    assert first == _epoch(ArrayOrder((X, {"y": X * 2}), 10, 4, seed=5), 0)
    assert first != second
    assert first != _epoch(ArrayOrder((X, {"y": X * 2}), 10, 4, seed=6), 0)
    for epoch in (first, second):
        assert [len(x) for x, _ in epoch] == [4, 4, 2]
        assert sorted(value for x, _ in epoch for value in x) == X.tolist()
        assert all(y == [2 * v for v in x] for x, y in epoch)


def test_no_global_seed_is_drawn_from():
    order = ArrayOrder((X, {"y": X}), 10, 4, seed=5)
    epochs = []
    for seed in (1, 2):
        tf.random.set_seed(seed)
        epochs.append(_epoch(order, 3))
    assert epochs[0] == epochs[1]


def test_dense_arrays_only():
    assert ArrayOrder.takes((X, None, {"y": tf.constant(X)}))
    assert not ArrayOrder.takes((X, tf.sparse.from_dense([[1]])))
    assert not ArrayOrder.takes((X, [1.0, 2.0]))
