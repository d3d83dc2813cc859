"""The private names that looking at and moving memory needs.

As `_compat`, with the same rules.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

# What a profiler session writes; TensorFlow ships the format but exports no
# public reader of it.
from tensorflow.tsl.profiler.protobuf import xplane_pb2


def parse_xspace(serialized: bytes) -> Any:
    """Returns what a profiler session recorded."""
    return xplane_pb2.XSpace.FromString(serialized)


def data_type_name(number: int) -> str:
    """Returns the name of a type by TensorFlow's number for it."""
    return tf.dtypes.as_dtype(number).name if number else ""


def on_touch(variable: tf.Variable, action: Callable[[], None]) -> None:
    """Calls an action before anything in Python next uses a variable.

    The action must call `forget_touch`, unless it raises.

    Args:
        variable: `tf.Variable`.
        action: Callable without arguments.
    """
    vars(variable)["_keras_tfopt_touched"] = action
    variable.__class__ = _touched_class(type(variable))


def forget_touch(variable: tf.Variable) -> None:
    """Lets a variable be used as any other again."""
    variable.__class__ = type(variable).__mro__[1]
    del vars(variable)["_keras_tfopt_touched"]


def is_touch_awaited(variable: Any) -> bool:
    """Whether `on_touch` waits for a use of a variable."""
    return "_keras_tfopt_touched" in getattr(variable, "__dict__", {})


_CLASSES: dict[type, type] = {}


def _touched_class(cls: type) -> type:
    """Returns a class whose objects act before they give their handle away."""
    if cls not in _CLASSES:

        class Touched(cls):
            # Python and TensorFlow's fast path in C++ both ask for `_handle`;
            # a property of the class comes before the attribute.
            @property
            def _handle(self) -> Any:
                vars(self)["_keras_tfopt_touched"]()
                return self._handle

        Touched.__name__, Touched.__qualname__ = cls.__name__, cls.__qualname__
        _CLASSES[cls] = Touched
    return _CLASSES[cls]
