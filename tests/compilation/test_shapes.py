"""The shapes of a batch, as XLA sees them."""

import pytest
import tensorflow as tf

from keras_tfopt.compilation.shapes import describe_shapes
from keras_tfopt.compilation.shapes import is_shorter
from keras_tfopt.compilation.shapes import shapes_of


def test_shapes_of_a_nest():
    batch = ({"a": tf.ones((2, 3))}, tf.constant([1, 2]), None)
    shapes = shapes_of(batch)
    assert shapes == (("float32", (2, 3)), ("int32", (2,)))
    assert describe_shapes(shapes) == "float32[2, 3], int32[2]"


def test_ragged_rows_have_the_shape_of_their_values():
    def shapes(rows):
        return shapes_of(tf.ragged.constant(rows))

    assert shapes([[1], [2, 3]]) == shapes([[4, 5], [6]])
    assert shapes([[1], [2, 3]]) != shapes([[1], [2]])


@pytest.mark.parametrize(
    "shape, other, expected",
    [
        ((2, 3), (4, 3), True),
        ((4, 3), (2, 3), False),
        ((4, 3), (4, 3), False),
        ((2, 3), (4, 4), False),
        ((), (), False),
    ],
)
def test_shorter_batches(shape, other, expected):
    first, second = (
        (("float32", each), ("float32", ())) for each in (shape, other)
    )
    assert is_shorter(first, second) == expected


def test_batches_of_other_parts_are_not_shorter():
    (short,) = shapes_of(tf.ones((1, 2)))
    (long,) = shapes_of(tf.ones((3, 2)))
    (integers,) = shapes_of(tf.ones((3, 2), tf.int32))
    assert not is_shorter((short,), (long, long))
    assert not is_shorter((short,), (integers,))
    assert not is_shorter((short, long), (long, short))
