"""The shapes of a batch, as XLA sees them."""

import functools

import pytest
import tensorflow as tf

from keras_tfopt.compilation.shapes import describe_shapes
from keras_tfopt.compilation.shapes import is_shorter
from keras_tfopt.compilation.shapes import padded_rows
from keras_tfopt.compilation.shapes import rows_of
from keras_tfopt.compilation.shapes import shapes_of
from keras_tfopt.compilation.shapes import with_rows


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


def test_rows_to_pad_to():
    def of(rows, width=4):
        return (("float32", (rows, width)), ("float32", ()))

    assert with_rows(of(3), 8) == of(8)
    assert rows_of(of(3)) == 3
    assert rows_of((("float32", (3, 4)), ("float32", (2,)))) is None
    assert rows_of((("float32", ()),)) is None
    known = [of(8), of(16), of(5, width=3)]
    choose = functools.partial(padded_rows, known=known, buckets=None)
    assert [choose(n, of(n)) for n in (3, 8, 9, 17)] == [8, 8, 16, 17]
    # Those of a micro-batch, whatever the batch has.
    assert choose(6, of(20)) == 8
    given = functools.partial(padded_rows, known=known, buckets=(12, 4))
    assert [given(n, of(n)) for n in (3, 5, 13)] == [4, 12, 13]
