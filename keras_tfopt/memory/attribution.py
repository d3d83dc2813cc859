"""From the name of an operation to the layer that it belongs to."""

from collections.abc import Iterator
import contextlib
import functools
import re
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.memory.allocation_trace import Allocation

LOSS = "(loss)"
LOOP = "(micro-batch loop)"
OPTIMIZER = "(optimizer)"

KINDS = (
    "weights",
    "slots",
    "state",
    "batch",
    "activations",
    "gradients",
    "temporaries",
    "accumulators",
    "optimizer",
    "other",
)

_MARK = re.compile(r"keras_tfopt_layer_(\d+)")
_LOOP_BODY = re.compile(r"while(_\d+)?/body/")
_CALL = "PartitionedCall"


class Attribution:
    """Knows the layers of a model by the names of their operations.

    Keras opens a scope with the name of a layer when it calls it, and numbers
    equal names, so that `dense_1` may be the layer of that name or the second
    scope of `dense`. Inside of `marked()` each layer opens a scope with a
    number of its own instead. Functions that were traced before are read by
    Keras' names where those are unambiguous.

    Args:
        model: A Keras model.
    """

    def __init__(self, model: keras.Model) -> None:
        layers = [la for la in _compat.layers_of(model) if la is not model]
        self._layers = list({id(layer): layer for layer in layers}.values())
        self._names = _unique_names(self._layers)
        optimizer = getattr(model, "optimizer", None)
        self._optimizer = None if optimizer is None else optimizer.name

    @contextlib.contextmanager
    def marked(self) -> Iterator[None]:
        """Marks the operations that are traced, or run, inside."""
        before = [vars(layer).get("call") for layer in self._layers]
        try:
            for number, layer in enumerate(self._layers):
                # In `vars`, past the tracking of `__setattr__`.
                vars(layer)["call"] = _marking(
                    layer.call, f"keras_tfopt_layer_{number}"
                )
            yield
        finally:
            for layer, call in zip(self._layers, before, strict=True):
                if call is None:
                    del vars(layer)["call"]
                else:
                    vars(layer)["call"] = call

    def layer_of(self, operation: str) -> str | None:
        """Returns the name of the innermost layer; `None` if there is none.

        Args:
            operation: String. Name of an operation, with its scopes.
        """
        marks = _MARK.findall(operation)
        if marks:
            return self._names[int(marks[-1])]
        segments = operation.split("/")
        if "compile_loss" in segments:
            return LOSS
        if self._optimizer and any(
            _is_numbered(segment, self._optimizer) for segment in segments
        ):
            return OPTIMIZER
        for segment in reversed(segments[:-1]):
            named = [
                name
                for name, layer in zip(self._names, self._layers, strict=True)
                if _is_numbered(segment, layer.name)
            ]
            if named:
                # More than one is none.
                return named[0] if len(named) == 1 else None
        return LOOP if _is_in_loop(operation) else None

    def kind_of(self, allocation: Allocation) -> str:
        """Returns which of `KINDS` an allocation of a step is."""
        layer = self.layer_of(allocation.operation)
        if layer == OPTIMIZER:
            return "optimizer"
        if allocation.region == "temp":
            return "temporaries"
        if "gradient_tape/" in allocation.operation:
            return "gradients"
        if layer == LOOP:
            return "accumulators"
        return "other" if layer is None else "activations"


def short_operation(operation: str) -> str:
    """Returns the last two parts of a name, without scopes of ours."""
    parts = [part for part in operation.split("/") if not _MARK.fullmatch(part)]
    return "/".join(parts[-2:])


def _marking(call: Any, mark: str) -> Any:
    @functools.wraps(call)
    def marked(*args: Any, **kwargs: Any) -> Any:
        with tf.name_scope(mark):
            return call(*args, **kwargs)

    return marked


def _unique_names(layers: list[Any]) -> list[str]:
    names = [layer.name for layer in layers]
    return [
        name if names.count(name) == 1 else (layer.path or name)
        for name, layer in zip(names, layers, strict=True)
    ]


def _is_numbered(segment: str, name: str) -> bool:
    """Whether a scope is one of a name, with the number of a repetition."""
    return re.fullmatch(re.escape(name) + r"(_\d+)?", segment) is not None


def _is_in_loop(operation: str) -> bool:
    """Whether an operation is one of a loop, and not of what it calls."""
    return bool(_LOOP_BODY.search(operation)) and _CALL not in operation
