"""Putting the guarded step on a model, whatever its class."""

from collections.abc import Callable
import types
from typing import Any
import weakref

import keras

from keras_tfopt import _compat
from keras_tfopt.accumulation import EVALUATION
from keras_tfopt.accumulation import TRAINING
from keras_tfopt.distribution.replicas import is_synchronous
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.checks import overridden_step
from keras_tfopt.training.failure import Remedy
from keras_tfopt.training.guarded_own_step import GuardedOwnStep
from keras_tfopt.training.guarded_prediction import GuardedPrediction
from keras_tfopt.training.guarded_step import GuardedStep
from keras_tfopt.training.settings import AccumulationSettings

Guard = GuardedStep | GuardedOwnStep | GuardedPrediction

ROLES = ("train", "test", "predict")

# Keeps guards, with their compiled functions, for the next call of `fit`, each
# with the compilation that it was made for.
_ATTRIBUTE = "_keras_tfopt_guards"


def guard_of(
    model: keras.Model, role: str = "train", own_step: bool = False
) -> Guard:
    """Returns the guard that runs a model's steps, installing it if need be.

    Keras looks its step functions up at every step, so a guard takes effect at
    once. Several callbacks share one. `AccumModel` trains and evaluates under
    guards of its own; on any other model they stay until `release_guard`, or
    until the next `fit`, `evaluate` or `predict` after an exception.

    Args:
        model: A compiled Keras model inside of `fit`, `evaluate` or `predict`.
        role: String. One of `"train"`, `"test"` and `"predict"`. Defaults to
            `"train"`.
        own_step: Boolean. Whether a step that the model overrides may be
            guarded too, which splits it into several updates. Defaults to
            `False`.

    Returns:
        `GuardedStep`; `GuardedPrediction` for `"predict"`; `GuardedOwnStep` for
        a model that overrides its step.

    Raises:
        ValueError: If the model's step is not Keras' own and `own_step` is not
            set, or if it runs eagerly or under a distribution strategy that
            cannot be guarded.
    """
    current = getattr(model, f"{role}_function")
    if isinstance(current, GuardedOwnStep) and not own_step:
        _check_guardable(model, role, own_step)
    if isinstance(current, Guard):
        return current
    _check_guardable(model, role, own_step)
    # In `vars`, past the tracking of `__setattr__`.
    guards = vars(model).setdefault(_ATTRIBUTE, types.SimpleNamespace())
    compilation = _compat.compilation_of(model)
    made_for, guard = getattr(guards, role, (None, None))
    if guard is None or made_for is not compilation:
        guard = _make_guard(model, role, current)
        setattr(guards, role, (compilation, guard))
    setattr(model, f"{role}_function", guard)
    # Keras delivers no `on_train_end` after an exception. The next `fit` asks
    # for its function before its callbacks do, and gets Keras' own.
    vars(model)[f"make_{role}_function"] = _remover(model, role)
    return guard


def guarded_step_of(model: keras.Model) -> GuardedStep:
    """Returns the guard of a model's training, which takes checks.

    Args:
        model: As for `guard_of`.
    """
    guard = guard_of(model)
    if not isinstance(guard, GuardedStep):
        raise TypeError(f"{type(guard).__name__} does not train.")
    return guard


def release_guard(model: keras.Model, role: str, *remedies: Remedy) -> None:
    """Takes remedies back, and a guard that has neither them nor checks.

    Args:
        model: A Keras model.
        role: As for `guard_of`.
        *remedies: `Remedy`; those that are not registered are left out.
    """
    guard = getattr(model, f"{role}_function")
    if not isinstance(guard, Guard):
        return
    for remedy in remedies:
        guard.control.unregister(remedy)
    if not guard.control.remedies and not getattr(guard, "checks", ()):
        _remove_guard(model, role)


def _remove_guard(model: keras.Model, role: str) -> None:
    """Gives a model Keras' own step back, unless the guard is its own.

    Args:
        model: A Keras model.
        role: As for `guard_of`.
    """
    if f"make_{role}_function" in vars(model):
        del vars(model)[f"make_{role}_function"]
        getattr(model, f"{role}_function").reset()
        setattr(model, f"{role}_function", None)


def _make_guard(model: keras.Model, role: str, current: Callable) -> Guard:
    settings = AccumulationSettings()
    settings.plan = ExecutionPlan(jit_compile=bool(model.jit_compile))
    if role == "predict":
        return GuardedPrediction(model, current, settings)
    mode = TRAINING if role == "train" else EVALUATION
    overridden = overridden_step(model, role)
    if overridden:
        step = getattr(model, overridden)
        return GuardedOwnStep(model, step, settings, mode.name)
    return GuardedStep(model, settings, mode)


def _check_guardable(model: keras.Model, role: str, own_step: bool) -> None:
    overridden = overridden_step(model, role)
    if overridden and role != "predict":
        _check_own_step(f"{type(model).__name__}.{overridden}", model, own_step)
    strategy = _compat.strategy_of(model)
    if strategy is None:
        return
    if overridden or role == "predict":
        name = overridden or "predict"
        raise ValueError(
            "Under a distribution strategy only Keras' own training and test "
            f"steps can be guarded. Received: {type(strategy).__name__} and "
            f"{type(model).__name__}.{name}. Expected: no strategy."
        )
    if not is_synchronous(strategy):
        raise ValueError(
            "A guarded step does not run under this distribution strategy. "
            f"Received: {type(strategy).__name__}. Expected: MirroredStrategy "
            "or none."
        )


def _check_own_step(name: str, model: keras.Model, own_step: bool) -> None:
    if not own_step:
        raise ValueError(
            "A guarded step stands in for Keras' own. Received: "
            f"{name}. Expected: a model that does not override it. Override "
            "`compute_loss`, `compute_metrics` or `call` instead, or let "
            "`OOMRecovery(half_batches=True)` make several updates of a batch."
        )
    if model.run_eagerly:
        raise ValueError(
            "What an overridden step writes is found in its graph. Received: "
            f"{name} with run_eagerly=True. Expected: run_eagerly=False."
        )


def _remover(model: keras.Model, role: str) -> Any:
    reference = weakref.ref(model)

    def make_function(force: bool = False) -> Any:
        model = reference()
        _remove_guard(model, role)
        return getattr(model, f"make_{role}_function")(force)

    return make_function
