"""The private names that looking at and moving memory needs.

As `_compat`, with the same rules.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
from typing import Any

import keras
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


def move_variable(variable: keras.Variable, device: str) -> None:
    """Moves the value of a variable to another device.

    TensorFlow's variables stay where they are made, so that the Keras variable
    gets another one. The buffer of the old one is released; functions that
    were traced with it fail from then on.

    Args:
        variable: Keras variable without a distribution strategy.
        device: String. Name of a logical device.
    """
    old = variable._value
    with tf.init_scope(), tf.device(device):
        variable._value = tf.Variable(
            old.read_value(), trainable=old.trainable, name=variable.name
        )
    with tf.init_scope(), tf.device(old.device):
        tf.raw_ops.AssignVariableOp(
            resource=old.handle,
            value=tf.zeros((0,), old.dtype),
            validate_shape=False,
        )


@contextlib.contextmanager
def slots_on(
    optimizer: keras.optimizers.Optimizer, device: str | None
) -> Iterator[None]:
    """Lets an optimizer make its slots on a device.

    Args:
        optimizer: The optimizer, or the one inside of a `LossScaleOptimizer`.
        device: String, or `None` for where the variables are.
    """
    if device is None:
        yield
        return
    method = "add_variable_from_reference"
    # The last class makes the slot; one before it, where the variable is.
    (*_, owner) = (c for c in type(optimizer).__mro__ if method in vars(c))
    make = getattr(owner, method)

    def make_there(*args: Any, **kwargs: Any) -> keras.Variable:
        with tf.device(device):
            return make(optimizer, *args, **kwargs)

    # Past `__setattr__`, which would start to track it.
    vars(optimizer)[method] = make_there
    try:
        yield
    finally:
        del vars(optimizer)[method]


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
