"""Python state as JSON and arrays, exactly and without pickle."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

# Marks the JSON objects that stand for what JSON has no form for.
_KIND = "#"


class NotPlainError(TypeError):
    """A value is made of more than numbers, strings, arrays and containers."""


def encode(value: Any, arrays: dict[str, Any], prefix: str) -> Any:
    """Turns a value into JSON, its arrays put aside.

    Args:
        value: Nest of lists, tuples and dicts of numbers, strings, NumPy arrays
            and functions of `keras.ops`.
        arrays: Dict that receives copies of the arrays.
        prefix: String. Start of their names.

    Returns:
        What `json` takes.

    Raises:
        NotPlainError: If the value holds anything else.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if type(value) in (int, float):
        return value
    if isinstance(value, np.generic):
        return {
            _KIND: "scalar",
            "dtype": value.dtype.name,
            "value": value.item(),
        }
    if isinstance(value, np.ndarray) and _is_numeric(value.dtype):
        name = f"{prefix}/{len(arrays)}"
        # Its owner may write into it while a thread writes it to disk.
        arrays[name] = value.copy()
        return {_KIND: "array", "name": name}
    if type(value) is list:
        return [encode(item, arrays, prefix) for item in value]
    if type(value) is tuple:
        items = [encode(item, arrays, prefix) for item in value]
        return {_KIND: "tuple", "items": items}
    if isinstance(value, dict):
        items = [
            [encode(key, arrays, prefix), encode(item, arrays, prefix)]
            for key, item in value.items()
        ]
        return encoded_dict(items)
    name = getattr(value, "__name__", "")
    if name and getattr(keras.ops, name, None) is value:
        return {_KIND: "op", "name": name}
    raise NotPlainError(f"{type(value).__name__} {value!r:.80}")


def encoded_dict(items: list[list]) -> dict[str, Any]:
    """Returns a dict whose keys and values are encoded, as JSON."""
    return {_KIND: "dict", "items": items}


def decode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Turns what `encode` returned back into the value.

    Args:
        value: What `json` read.
        arrays: Dict of the arrays by name.
    """
    if isinstance(value, list):
        return [decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value[_KIND]
    if kind == "scalar":
        return dtype_of(value["dtype"]).type(value["value"])
    if kind == "array":
        return arrays[value["name"]].copy()
    if kind == "tuple":
        return tuple(decode(item, arrays) for item in value["items"])
    if kind == "op":
        return getattr(keras.ops, value["name"])
    return {
        decode(key, arrays): decode(item, arrays)
        for key, item in value["items"]
    }


def dtype_of(name: str) -> np.dtype:
    """Returns the NumPy dtype of a name, TensorFlow's own ones included."""
    try:
        return np.dtype(name)
    except TypeError:
        return np.dtype(tf.as_dtype(name).as_numpy_dtype)


def _is_numeric(dtype: np.dtype) -> bool:
    # NumPy takes TensorFlow's own dtypes for raw bytes.
    return dtype.kind in "biufc" or (
        dtype.kind == "V" and dtype.name != f"void{8 * dtype.itemsize}"
    )
