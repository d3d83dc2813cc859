"""Exact gradient accumulation for any Keras model class."""

import dataclasses
from typing import Any

from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.plan import PlanEvent
from keras_tfopt.plan import check_positive_integer
from keras_tfopt.training.checks import check_splittable
from keras_tfopt.training.checks import is_manageable
from keras_tfopt.training.train_function import TrainFunction


class _Settings:
    """How a model splits and gathers batches, and what became of its plan."""

    def __init__(self, plan: ExecutionPlan, gather_steps: int | None) -> None:
        check_positive_integer("gather_steps", gather_steps)
        self.plan = plan
        self.plan_events: list[PlanEvent] = []
        self.gather_steps = gather_steps or 1

    @property
    def is_active(self) -> bool:
        """Whether steps consist of parts."""
        return self.plan.is_split or self.gather_steps > 1


class AccumMixin:
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

    Raises:
        ValueError: If a number is not a positive integer, or if both ways of
            splitting are given.
    """

    def __init__(
        self,
        *args: Any,
        accumulation_steps: int | None = None,
        microbatch_size: int | None = None,
        gather_steps: int | None = None,
        **kwargs: Any,
    ) -> None:
        settings = _Settings(
            ExecutionPlan(accumulation_steps, microbatch_size), gather_steps
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
        return tuple(self._settings.plan_events)

    @property
    def gather_steps(self) -> int:
        """Number of delivered batches that make one update."""
        return self._settings.gather_steps

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Configures the model for training, as `keras.Model.compile` does.

        Raises:
            ValueError: If batches are split or gathered and the model or its
                optimizer cannot have that.
        """
        super().compile(*args, **kwargs)
        settings = self._settings
        settings.plan = dataclasses.replace(
            settings.plan, jit_compile=bool(self.jit_compile)
        )
        if settings.is_active:
            check_splittable(self)

    def make_train_function(self, force: bool = False) -> Any:
        """Makes the function that `fit` calls for each step."""
        if not is_manageable(self):
            return super().make_train_function(force)
        if self.train_function is None or force:
            self.train_function = TrainFunction(self, self.gather_steps)
        self.train_function.reset()
        return self.train_function

    def _get_metrics_result_or_logs(self, logs: Any) -> Any:
        # `fit` calls this after the last step of an epoch and before it
        # validates: the moment to update with what has been gathered.
        if isinstance(self.train_function, TrainFunction):
            logs = self.train_function.end_epoch(logs)
        return super()._get_metrics_result_or_logs(logs)
