"""Exact gradient accumulation for any Keras model class."""

import dataclasses
from typing import Any

import keras

from keras_tfopt import _compat
from keras_tfopt.accumulation import EVALUATION
from keras_tfopt.accumulation.optimizer_build import build_optimizer
from keras_tfopt.accumulation.remat import check_remat
from keras_tfopt.distribution.agreement import lost_workers
from keras_tfopt.distribution.first_batch import first_part
from keras_tfopt.distribution.replicas import spans_workers
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.plan import Offload
from keras_tfopt.plan import PlanEvent
from keras_tfopt.plan import Remat
from keras_tfopt.training.checks import check_plan
from keras_tfopt.training.checks import is_manageable
from keras_tfopt.training.coordinated_mixin import CoordinatedMixin
from keras_tfopt.training.equivalence import EquivalenceReport
from keras_tfopt.training.equivalence import check_equivalence
from keras_tfopt.training.guarded_step import GuardedStep
from keras_tfopt.training.plain import plain_model
from keras_tfopt.training.settings import AccumulationSettings
from keras_tfopt.training.settings import CompileConfig
from keras_tfopt.training.stock_step import with_log_vectors


class AccumMixin(CoordinatedMixin):
    """Gives a Keras model class micro-batches in an ordinary `fit`.

    Use it where the base class is taken; otherwise use `AccumModel`. It must
    stand before the model class.

    Example:

    ```python
    import keras
    from keras_tfopt import AccumMixin

    class BaseModel(keras.Model):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.dense = keras.layers.Dense(1)

        def call(self, inputs):
            return self.dense(inputs)

    class Net(AccumMixin, BaseModel):
        pass

    model = Net(microbatch_size=8)
    model.compile("sgd", "mse")
    model.fit(keras.ops.ones((32, 4)), keras.ops.ones((32, 1)), verbose=0)
    ```

    Args:
        accumulation_steps: Integer or `None`. Number of micro-batches that
            each batch is split into. Defaults to `None`.
        microbatch_size: Integer or `None`. Rows of a micro-batch. Excludes
            `accumulation_steps`. Defaults to `None`.
        gather_steps: Integer or `None`. Number of delivered batches that make
            one update, for loaders that deliver micro-batches. What is left at
            the end of an epoch makes one smaller update. Defaults to `None`.
        remat: What is computed again in the backward pass instead of kept, as
            for `ExecutionPlan`. Defaults to `None`, which means nothing.
        offload: What is in the memory of the host in place of the device's, as
            for `ExecutionPlan`. Defaults to `None`, which means nothing.

    Raises:
        ValueError: If a number is not a positive integer, if both ways of
            splitting are given, or if `remat` or `offload` is something else.
    """

    train_function: Any
    test_function: Any

    def __init__(
        self,
        *args: Any,
        accumulation_steps: int | None = None,
        microbatch_size: int | None = None,
        gather_steps: int | None = None,
        remat: Remat = None,
        offload: Offload = None,
        **kwargs: Any,
    ) -> None:
        settings = AccumulationSettings(
            accumulation_steps, microbatch_size, gather_steps, remat, offload
        )
        super().__init__(*args, **kwargs)
        self._settings = settings

    @property
    def plan(self) -> ExecutionPlan:
        """The `ExecutionPlan` in force."""
        return self._settings.plan

    @property
    def plan_events(self) -> tuple[PlanEvent, ...]:
        """Every change of plan so far, oldest first."""
        return self._settings.plan_events

    @property
    def gather_steps(self) -> int:
        """Number of delivered batches that make one update."""
        return self.plan.gather_steps or 1

    def change_plan(self, plan: ExecutionPlan, reason: str) -> None:
        """Changes the plan from the next step on, also inside of `fit`.

        Another number or size of micro-batches costs no retracing, unless XLA
        compiles the step. Batches that are gathered already make an update
        before another `gather_steps` counts. The change is recorded in
        `plan_events`.

        Args:
            plan: The new `ExecutionPlan`.
            reason: String. Why, for `plan_events`.

        Raises:
            ValueError: If the plan splits or gathers batches, or recomputes
                layers, and the model cannot.
        """
        if plan == self.plan:
            return
        if self.built:
            check_remat(self, plan.remat)
        if self.compiled:
            check_plan(self, plan)
        # Keras gives a model that attribute when it is compiled.
        optimizer = getattr(self, "optimizer", None)
        # `int` does not take a variable that replicas share.
        step = int(optimizer.iterations.numpy()) if optimizer else 0
        self._settings.change_plan(plan, reason, step)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Configures the model for training, as `keras.Model.compile` does.

        Raises:
            ValueError: If batches are split or gathered, or layers recomputed,
                and the model or its optimizer cannot have that.
        """
        super().compile(*args, **kwargs)
        settings = self._settings
        jit_compile = bool(self.jit_compile)
        if kwargs.get("jit_compile", "auto") == "auto":
            # Keras' own choice, which gives way to what XLA does not have.
            settings.plan = settings.plan.compiled(jit_compile)
        else:
            settings.plan = dataclasses.replace(
                settings.plan, jit_compile=jit_compile
            )
        check_plan(self, settings.plan)

    def get_compile_config(self) -> dict[str, Any]:
        """Returns the arguments of `compile`, accompanied by the settings."""
        config = super().get_compile_config()
        return CompileConfig(config, self._settings) if config else config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles a loaded or cloned model as the original was compiled."""
        if isinstance(config, CompileConfig):
            self._settings = config.settings
        if type(self).compile is not AccumMixin.compile:
            super().compile_from_config(config)
            return
        # Keras does not compile a model whose class overrides `compile`.
        self.compile(**keras.saving.deserialize_keras_object(dict(config)))
        if self.optimizer is not None and self.built:
            build_optimizer(self.optimizer, self.trainable_variables)

    def check_equivalence(self, batch: Any) -> EquivalenceReport:
        """Measures on a batch whether splitting it changes the gradient.

        See `EquivalenceReport`. Nothing is changed.

        Args:
            batch: Nest `(x, y)` or `(x, y, sample_weight)`, as `fit` gets it.

        Returns:
            `EquivalenceReport`.
        """
        return check_equivalence(self, batch)

    def to_keras_model(self, inputs: Any = None) -> keras.Model:
        """Returns a stock Keras model that shares this model's weights.

        For tools that must not meet a class of ours.

        Args:
            inputs: `keras.Input`, or nest of them, for a model that is not
                functional. Defaults to float inputs of the shape that the
                model was built for.

        Returns:
            An uncompiled `keras.Model`.

        Raises:
            ValueError: If `call` does more than layers and `keras.ops` can.
        """
        return plain_model(self, inputs)

    def get_config(self) -> dict[str, Any]:
        """Returns the model's config with its accumulation settings."""
        return {**super().get_config(), **self._settings.get_config()}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> "AccumMixin":
        """Makes a model from its config.

        The settings are put back even if the constructor of a subclass does not
        take them.
        """
        config = dict(config)
        settings = AccumulationSettings.pop_config(config)
        model = super().from_config(config, custom_objects=custom_objects)
        if settings is not None:
            model._settings = settings
        return model

    def make_train_function(self, force: bool = False) -> Any:
        """Makes the function that `fit` calls for each step."""
        if not is_manageable(self):
            self._make_stock_function("train", force)
            return self.train_function
        if self.train_function is None or force:
            self.train_function = GuardedStep(self, self._settings)
        self.train_function.reset()
        return self.train_function

    def make_test_function(self, force: bool = False) -> Any:
        """Makes the function that `evaluate` calls for each step."""
        if not is_manageable(self, "test"):
            self._make_stock_function("test", force)
            return self.test_function
        if self.test_function is None or force:
            settings = AccumulationSettings()
            settings.plan = ExecutionPlan(jit_compile=bool(self.jit_compile))
            self.test_function = GuardedStep(self, settings, EVALUATION)
        self.test_function.reset()
        return self.test_function

    def _make_stock_function(self, role: str, force: bool) -> None:
        if not spans_workers(_compat.strategy_of(self)):
            getattr(super(), f"make_{role}_function")(force)
        elif getattr(self, f"{role}_function") is None or force:
            step = with_log_vectors(getattr(self, f"{role}_step"))
            function = _compat.stock_function(self, step)
            setattr(self, f"{role}_function", function)

    def _maybe_symbolic_build(
        self, iterator: Any = None, data_batch: Any = None
    ) -> None:
        # Keras averages the parts of the first batch, which must then be equal.
        strategy = _compat.strategy_of(self)
        if strategy is not None and iterator is not None:
            data_batch = first_part(strategy, iterator)
            iterator = None
        elif spans_workers(strategy):
            raise ValueError(
                "A batch of one worker's own is not known to be a part of a "
                "larger one or the same on all. Received: `train_on_batch` or "
                "`test_on_batch` under MultiWorkerMirroredStrategy. Expected: "
                "`fit` or `evaluate`, which divide data among the workers."
            )
        super()._maybe_symbolic_build(iterator, data_batch)

    def reset_metrics(self) -> None:
        """Resets the state of all metrics in the model."""
        # Under several workers that is a collective, as reading them is.
        with lost_workers():
            super().reset_metrics()

    def _get_metrics_result_or_logs(self, logs: Any) -> Any:
        # `fit` calls this after the last step of an epoch and before it
        # validates: the moment to update with what has been gathered.
        if isinstance(self.train_function, GuardedStep):
            logs = self.train_function.end_epoch(logs)
        with lost_workers():
            return super()._get_metrics_result_or_logs(logs)
