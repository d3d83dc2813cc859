"""Whether a compiled model's step can be split, and why not."""

import keras

from keras_tfopt import _compat
from keras_tfopt.distribution.replicas import is_synchronous
from keras_tfopt.distribution.replicas import spans_workers
from keras_tfopt.distribution.shard_checks import check_devices
from keras_tfopt.plan import ExecutionPlan


def is_manageable(model: keras.Model, role: str = "train") -> bool:
    """Whether our step can stand in for Keras' own step of a model.

    A model with its own `train_step`, or under a distribution strategy whose
    replicas cannot be run, keeps the step that Keras makes.
    """
    strategy = _compat.strategy_of(model)
    is_runnable = strategy is None or is_synchronous(strategy)
    return is_runnable and not overridden_step(model, role)


def overridden_step(model: keras.Model, role: str) -> str | None:
    """Returns the name of the step that a model's class overrides, or `None`.

    Args:
        model: A Keras model.
        role: String. One of `"train"`, `"test"` and `"predict"`.
    """
    name = f"{role}_step"
    is_stock = getattr(type(model), name) is getattr(keras.Model, name)
    return None if is_stock else name


def check_planned(
    callback: keras.callbacks.Callback, model: keras.Model
) -> None:
    """Raises if a model has no plan that a callback could change.

    Raises:
        ValueError: If it has none.
    """
    if not hasattr(model, "change_plan"):
        raise ValueError(
            f"`{type(callback).__name__}` changes the plan of a model. "
            f"Received: a {type(model).__name__}, which has none. "
            "Expected: an `AccumModel`. Use `AccumModel.from_model`."
        )


def check_alike(model: keras.Model, what: str, decides_alike: bool) -> None:
    """Raises if what decides by its own measurements would do so on workers.

    Args:
        model: A Keras model.
        what: String. Names what decides.
        decides_alike: Boolean. Whether it decides by what all workers see.

    Raises:
        ValueError: If the model trains on several workers, and it does not.
    """
    if decides_alike or not spans_workers(_compat.strategy_of(model)):
        return
    raise ValueError(
        "Several workers must run each step under the same plan. Received: "
        f"{what}, which decides by what one worker measures, under "
        "MultiWorkerMirroredStrategy. Expected: a setting that is the same on "
        "all workers, or MirroredStrategy on one machine."
    )


def check_triable(model: keras.Model) -> None:
    """Raises if steps under other plans cannot be tried on a model.

    Raises:
        ValueError: Names what prevents it.
    """
    if not model.compiled or not is_manageable(model) or model.run_eagerly:
        raise ValueError(
            "Plans are tried on Keras' own step. Received: a model that is "
            "not compiled, overrides `train_step`, runs eagerly, or is under "
            "a distribution strategy. Expected: none of that."
        )


def check_plan(model: keras.Model, plan: ExecutionPlan) -> None:
    """Raises if the steps of a compiled model cannot run under a plan.

    Raises:
        ValueError: Names what prevents it and the way out.
    """
    check_devices(model, plan)
    if plan.is_split or plan.gathers:
        check_splittable(model, plan)
    if plan.remat is not None and not is_manageable(model):
        raise ValueError(
            "A model with its own `train_step`, or under a distribution "
            "strategy, trains as Keras makes it and not by a plan. Received: "
            f"remat={plan.remat!r} for {type(model).__name__}. Expected: "
            "remat=None. Use `apply_remat(model, ...)`, which works for any "
            "step."
        )
    if plan.offload is not None:
        check_offload(model, plan)


def check_offload(model: keras.Model, plan: ExecutionPlan) -> None:
    """Raises if nothing of a compiled model can be on the host.

    Args:
        model: The model.
        plan: `ExecutionPlan` that offloads.

    Raises:
        ValueError: Names what prevents it and the way out.
    """
    if not is_manageable(model):
        raise ValueError(
            "A model with its own `train_step`, or under a distribution "
            "strategy, trains as Keras makes it and not by a plan. Received: "
            f"offload={plan.offload} for {type(model).__name__}. Expected: "
            "offload=None."
        )
    strategy = _compat.strategy_of(model)
    if strategy is not None and plan.offload != ("activations",):
        raise ValueError(
            "Variables of several devices stay on them. Received: "
            f"offload={plan.offload} under {type(strategy).__name__}. "
            "Expected: offload=('activations',), or no distribution strategy."
        )


def check_splittable(model: keras.Model, plan: ExecutionPlan) -> None:
    """Raises if the steps of a compiled model cannot consist of parts.

    Args:
        model: The model.
        plan: `ExecutionPlan` that splits or gathers batches.

    Raises:
        ValueError: Names what prevents it and the way out.
    """
    settings = "`accumulation_steps`, `microbatch_size` or `gather_steps`"
    if overridden_step(model, "train"):
        raise ValueError(
            "A model with its own `train_step` cannot be split. Received: "
            f"{type(model).__name__}.train_step with {settings} set. "
            "Expected: Keras' `train_step`. Override `compute_loss`, "
            "`compute_metrics` or `call` instead, or leave these settings "
            "unset and accumulate inside of `train_step`."
        )
    steps = _accumulation_of(model.optimizer)
    if steps:
        raise ValueError(
            "Gradients would be accumulated twice. Received: "
            f"gradient_accumulation_steps={steps} in the optimizer with "
            f"{settings} set in the model. Expected: one of them. Leave "
            "`gradient_accumulation_steps` unset; the model's settings are "
            "exact."
        )
    strategy = _compat.strategy_of(model)
    if strategy is not None and not is_synchronous(strategy):
        raise ValueError(
            "Batches cannot be split under this distribution strategy. "
            f"Received: {type(strategy).__name__} with {settings} set. "
            "Expected: MirroredStrategy, MultiWorkerMirroredStrategy or none. "
            "Make the model outside of its "
            "scope, or leave these settings unset."
        )
    if strategy is not None and plan.gathers:
        raise ValueError(
            "Batches cannot be gathered under a distribution strategy. "
            f"Received: {type(strategy).__name__} with "
            f"gather_steps={plan.gather_steps}. Expected: no strategy, or "
            "`accumulation_steps` or `microbatch_size` on larger batches."
        )


def _accumulation_of(optimizer: keras.optimizers.Optimizer) -> int | None:
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return getattr(optimizer, "gradient_accumulation_steps", None)
