"""Everything that a training run consists of, taken and put back."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_tfopt import _compat_fit
from keras_tfopt.checkpoint.callback_state import capture_callbacks
from keras_tfopt.checkpoint.callback_state import restore_callbacks
from keras_tfopt.checkpoint.encoding import decode
from keras_tfopt.checkpoint.encoding import encode
from keras_tfopt.checkpoint.generation import VARIABLES
from keras_tfopt.checkpoint.generation import Generation
from keras_tfopt.checkpoint.random_state import capture_random_state
from keras_tfopt.checkpoint.random_state import restore_random_state
from keras_tfopt.checkpoint.variables import VariableSpec
from keras_tfopt.checkpoint.variables import assign
from keras_tfopt.checkpoint.variables import check_specs
from keras_tfopt.checkpoint.variables import snapshot
from keras_tfopt.checkpoint.variables import specs_of
from keras_tfopt.checkpoint.variables import split_by_owner
from keras_tfopt.checkpoint.variables import variables_of
from keras_tfopt.training.backup_peers import BackupPeers
from keras_tfopt.training.batch import without_optionals
from keras_tfopt.training.coordinated_step import CoordinatedStep
from keras_tfopt.training.guarded_step import GuardedStep

# Keras' own, which are restored apart or show what the others say.
_KERAS_CALLBACKS = (keras.callbacks.History, keras.callbacks.ProgbarLogger)


class RunState:
    """The state of a `fit` between two of its steps, but for its data.

    Variables of the model, its optimizer and its metrics; the global random
    generators; history and callbacks; the plan of the guarded step, and the
    batches that it gathers.

    Args:
        model: The compiled model that is trained.
        callbacks: List of the callbacks of `fit` whose state belongs to it.
        spec: Nest of the specs of a batch.
        peers: `BackupPeers`. What is equal on all is captured by the first.
    """

    def __init__(
        self, model: keras.Model, callbacks: list, spec: Any, peers: BackupPeers
    ) -> None:
        self._model = model
        self._peers = peers
        self._callbacks = [
            callback
            for callback in callbacks
            if not isinstance(callback, _KERAS_CALLBACKS)
        ]
        self._spec = without_optionals(spec)
        self._variables: list[Any] = []
        self._specs: list[list] = []
        # Index of the first one that is this process' own to write.
        self._first = 0
        self._size: tuple[int, ...] | None = None

    def capture(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the state as JSON and the arrays that it names.

        On a CPU the variables are not copied but held, see `snapshot`.
        """
        step = self._model.train_function
        if isinstance(step, CoordinatedStep):
            step.settle()
        self._find_variables()
        arrays: dict[str, Any] = {
            f"{VARIABLES}{index}": value
            for index, value in enumerate(
                snapshot(self._variables[self._first :]), self._first
            )
        }
        history = self._model.history
        state = {
            "variables": self._specs,
            "history": encode(
                [history.history, list(history.epoch)], arrays, "history"
            ),
            "random": encode(capture_random_state(), arrays, "random"),
            "callbacks": capture_callbacks(self._callbacks, arrays),
            "guard": self._capture_guard(arrays),
        }
        return state, arrays

    def check(self, content: dict) -> None:
        """Makes the model's variables where they are missing and checks them.

        Args:
            content: What `capture` returned, as it was read.

        Raises:
            ValueError: If the model or the optimizer is another one.
        """
        optimizer = self._model.optimizer
        _compat_fit.symbolic_build(self._model, self._spec)
        if optimizer is not None and not optimizer.built:
            optimizer.build(self._model.trainable_variables)
        self._find_variables()
        check_specs(
            [spec_of_entry(entry) for entry in content["variables"]],
            [spec_of_entry(entry) for entry in self._specs],
        )

    def restore(self, saved: Generation, content: dict) -> None:
        """Puts back everything, into a model that was checked.

        Args:
            saved: `Generation`.
            content: What `capture` returned, as it was read.
        """
        count = len(self._variables)
        values = [saved.arrays[f"{VARIABLES}{i}"] for i in range(count)]
        assign(self._variables, values)
        history = self._model.history
        values, epochs = decode(content["history"], saved.arrays)
        history.history, history.epoch = values, epochs
        restore_callbacks(self._callbacks, content["callbacks"], saved.arrays)
        self._restore_guard(saved, content["guard"])
        # Last: what went before may have drawn.
        restore_random_state(decode(content["random"], saved.arrays))

    def _find_variables(self) -> None:
        model, optimizer = self._model, self._model.optimizer
        size = (
            len(model.variables),
            len(model.metrics_variables),
            len(optimizer.variables) if optimizer is not None else 0,
        )
        # To search a large model takes longer than to hold its values.
        if size != self._size:
            self._size = size
            self._variables = variables_of(model)
            if self._peers.workers > 1:
                shared, own = split_by_owner(self._variables)
                self._variables = [*shared, *own]
                self._first = len(shared) if self._peers.worker else 0
            self._specs = [
                [spec.path, list(spec.shape), spec.dtype]
                for spec in specs_of(self._variables)
            ]

    def _capture_guard(self, arrays: dict[str, Any]) -> dict | None:
        guard = self._model.train_function
        if not isinstance(guard, GuardedStep):
            return None
        plan, waiting = guard.get_state()
        for row, batch in enumerate(waiting):
            for column, leaf in enumerate(_components(batch)):
                arrays[f"waiting/{row}/{column}"] = _to_bytes(leaf)
        return {"plan": plan, "waiting": len(waiting)}

    def _restore_guard(self, saved: Generation, content: dict | None) -> None:
        guard = self._model.train_function
        if content is None or not isinstance(guard, GuardedStep):
            return
        specs = _components(self._spec)
        waiting = [
            tf.nest.pack_sequence_as(
                self._spec,
                [
                    _from_bytes(saved.arrays[f"waiting/{row}/{column}"], spec)
                    for column, spec in enumerate(specs)
                ],
                expand_composites=True,
            )
            for row in range(content["waiting"])
        ]
        guard.set_state(content["plan"], waiting)


def spec_of_entry(entry: list) -> VariableSpec:
    """Returns the spec of a variable in a backup."""
    path, shape, dtype = entry
    return VariableSpec(path, tuple(shape), dtype)


def _components(nest: Any) -> list[Any]:
    return tf.nest.flatten(nest, expand_composites=True)


def _to_bytes(leaf: Any) -> np.ndarray:
    """Returns a tensor of any dtype, strings included, as bytes."""
    if leaf is None:
        return np.zeros((0,), np.uint8)
    return np.frombuffer(tf.io.serialize_tensor(leaf).numpy(), np.uint8)


def _from_bytes(data: np.ndarray, spec: Any) -> Any:
    if spec is None:
        return None
    return tf.io.parse_tensor(data.tobytes(), spec.dtype)
