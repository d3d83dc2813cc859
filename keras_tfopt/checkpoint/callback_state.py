"""What callbacks remember from one epoch to the next."""

import logging
from typing import Any

import keras

from keras_tfopt.checkpoint.encoding import NotPlainError
from keras_tfopt.checkpoint.encoding import decode
from keras_tfopt.checkpoint.encoding import encode
from keras_tfopt.checkpoint.encoding import encoded_dict

_logger = logging.getLogger("keras_tfopt")

# What Keras sets anew in each `fit`.
_NOT_STATE = frozenset({"_model", "model", "params", "validation_data"})


def capture_callbacks(
    callbacks: list[keras.callbacks.Callback], arrays: dict[str, Any]
) -> list[Any]:
    """Returns the state of callbacks as JSON.

    A callback with `get_state` says itself what its state is. Of any other it
    is the attributes that are numbers, strings, arrays, or lists, tuples and
    dicts of them.

    Args:
        callbacks: List of the callbacks.
        arrays: Dict that receives the arrays.

    Raises:
        ValueError: If `get_state` returns something else.
    """
    return [
        {
            "name": type(callback).__name__,
            "state": _capture(callback, arrays, f"callbacks/{index}"),
        }
        for index, callback in enumerate(callbacks)
    ]


def restore_callbacks(
    callbacks: list[keras.callbacks.Callback],
    saved: list[Any],
    arrays: dict[str, Any],
) -> None:
    """Gives callbacks their state back, each to the next of the same class.

    Args:
        callbacks: List of the callbacks.
        saved: What `capture_callbacks` returned.
        arrays: Dict of the arrays by name.
    """
    waiting = list(saved)
    for callback in callbacks:
        name = type(callback).__name__
        found = next((e for e in waiting if e["name"] == name), None)
        if found is None:
            _logger.warning(
                "The backup has no state of %s: it starts anew.", name
            )
            continue
        waiting.remove(found)
        state = decode(found["state"], arrays)
        if hasattr(callback, "set_state"):
            callback.set_state(state)
        else:
            vars(callback).update(state)


def _capture(
    callback: keras.callbacks.Callback, arrays: dict[str, Any], prefix: str
) -> Any:
    if hasattr(callback, "get_state"):
        state = callback.get_state()
        try:
            return encode(state, arrays, prefix)
        except NotPlainError as error:
            raise ValueError(
                "The state of a callback cannot be saved. Received: "
                f"{type(callback).__name__}.get_state() with {error}. "
                "Expected: numbers, strings, NumPy arrays, and lists, tuples "
                "and dicts of them."
            ) from error
    items = []
    for key, value in vars(callback).items():
        if key in _NOT_STATE:
            continue
        found: dict[str, Any] = {}
        try:
            items.append([key, encode(value, found, f"{prefix}/{key}")])
        except NotPlainError:
            continue
        arrays.update(found)
    return encoded_dict(items)
