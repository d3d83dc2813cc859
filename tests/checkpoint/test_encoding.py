"""Python state survives JSON to the last bit."""

import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt.checkpoint.encoding import NotPlainError
from keras_tfopt.checkpoint.encoding import decode
from keras_tfopt.checkpoint.encoding import encode


def _round_trip(value):
    arrays = {}
    encoded = json.loads(json.dumps(encode(value, arrays, "p")))
    return decode(encoded, arrays)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        2**80,
        0.1 + 0.2,
        math.inf,
        -0.0,
        "ü\n",
        [],
        [1, [2.5, "a"]],
        (1, (2, [3])),
        {},
        {1: "a", (2, "b"): {"#": "array"}, None: ()},
        keras.ops.less,
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_values(value):
    result = _round_trip(value)
    assert result == value
    assert type(result) is type(value)


def test_nan():
    assert math.isnan(_round_trip([math.nan])[0])


@pytest.mark.parametrize(
    "value",
    [
        np.float32(0.1),
        np.int8(-3),
        np.bool_(True),
        tf.bfloat16.as_numpy_dtype(1.5),
    ],
    ids=repr,
)
def test_numpy_scalars_keep_their_types(value):
    result = _round_trip(value)
    assert result == value
    assert result.dtype == value.dtype


def test_arrays_are_copied():
    array = np.arange(3.0)
    arrays = {}
    encoded = encode({"a": [array, array.astype("float16")]}, arrays, "p")
    array[0] = 9
    result = decode(encoded, arrays)["a"]
    assert [list(values) for values in result] == [[0, 1, 2]] * 2
    assert result[1].dtype == "float16"
    result[1][0] = 5
    assert all(name.startswith("p/") for name in arrays)


@pytest.mark.parametrize(
    "value",
    [object(), [lambda: 0], {"a": {1}}, np.array([None]), np.array(["a"])],
    ids=["object", "function", "set", "objects", "strings"],
)
def test_anything_else_is_refused(value):
    with pytest.raises(NotPlainError):
        encode(value, {}, "p")
