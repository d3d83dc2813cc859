"""Putting the guarded step on a model, whatever its class."""

from typing import Any
import weakref

import keras

from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.checks import has_own_train_step
from keras_tfopt.training.checks import replica_count
from keras_tfopt.training.guarded_step import GuardedStep
from keras_tfopt.training.settings import AccumulationSettings

# Guards of plain models, with their compiled functions, for the next `fit`.
_guards: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def guard_of(model: keras.Model) -> GuardedStep:
    """Returns the guarded step that runs a model's training steps.

    An `AccumModel` has one. On any other compiled model it is installed for the
    current `fit`: Keras looks `train_function` up at every step. Several
    callbacks share one guard.

    Args:
        model: A compiled Keras model inside of `fit`.

    Returns:
        `GuardedStep`.

    Raises:
        ValueError: If the model's step is not Keras' own, so that it cannot be
            run again without a trace.
    """
    if isinstance(model.train_function, GuardedStep):
        return model.train_function
    if has_own_train_step(model):
        raise ValueError(
            "A guarded step stands in for Keras' `train_step`. Received: "
            f"{type(model).__name__}.train_step. Expected: a model that does "
            "not override it. Override `compute_loss`, `compute_metrics` or "
            "`call` instead."
        )
    if replica_count(model) > 1:
        raise ValueError(
            "A guarded step runs on one replica. Received: a model with "
            f"{replica_count(model)} replicas. Expected: one."
        )
    guard = _guards.get(model)
    if guard is None or not guard.is_current:
        settings = AccumulationSettings()
        settings.plan = ExecutionPlan(jit_compile=bool(model.jit_compile))
        guard = _guards[model] = GuardedStep(model, settings)
    model.train_function = guard
    # Keras delivers no `on_train_end` after an exception. The next `fit` asks
    # for its train function before its callbacks do, and gets Keras' own.
    vars(model)["make_train_function"] = _remover(model)
    return guard


def remove_guard(model: keras.Model) -> None:
    """Gives a plain model Keras' own step back; other models keep theirs."""
    if "make_train_function" in vars(model):
        del vars(model)["make_train_function"]
        model.train_function.reset()
        model.train_function = None


def _remover(model: keras.Model) -> Any:
    reference = weakref.ref(model)

    def make_train_function(force: bool = False) -> Any:
        model = reference()
        remove_guard(model)
        return model.make_train_function(force)

    return make_train_function
