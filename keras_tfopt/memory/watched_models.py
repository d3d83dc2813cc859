"""Models whose methods run inside of a context."""

from collections.abc import Callable
import contextlib
import functools
from typing import Any

import keras

# Methods that run compiled functions of a model's variables.
_METHODS = (
    "fit",
    "evaluate",
    "predict",
    "train_on_batch",
    "test_on_batch",
    "predict_on_batch",
)


class WatchedModels:
    """Enters a context around each method of models that runs their steps.

    Args:
        enter: Callable that makes the context of some names.
    """

    def __init__(
        self, enter: Callable[..., contextlib.AbstractContextManager]
    ) -> None:
        self._enter = enter
        self._models: dict[int, tuple[keras.Model, tuple[str, ...]]] = {}

    def watch(self, model: keras.Model, names: tuple[str, ...]) -> None:
        """Watches a model, with other names than before if it is watched."""
        self.unwatch(model)
        self._models[id(model)] = (model, names)
        for method in _METHODS:
            # In `vars`, past the tracking of `__setattr__`.
            vars(model)[method] = self._inside(getattr(model, method), names)

    def unwatch(self, model: keras.Model) -> None:
        """Gives a model its own methods back."""
        if self._models.pop(id(model), None) is not None:
            for method in _METHODS:
                vars(model).pop(method, None)

    def clear(self) -> None:
        """Gives all models their own methods back."""
        for model, _ in list(self._models.values()):
            self.unwatch(model)

    def names_of(self, model: Any) -> tuple[str, ...] | None:
        """Returns the names of a model; `None` if it is not watched."""
        known = self._models.get(id(model))
        return None if known is None else known[1]

    def _inside(self, method: Callable, names: tuple[str, ...]) -> Callable:
        @functools.wraps(method)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self._enter(*names):
                return method(*args, **kwargs)

        return run
