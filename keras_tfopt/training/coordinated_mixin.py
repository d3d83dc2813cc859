"""`fit`, `evaluate` and `predict` under a parameter server strategy."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.distribution.parameter_server import CoordinatorView
from keras_tfopt.distribution.parameter_server import is_asynchronous
from keras_tfopt.training.coordinated_prediction import CoordinatedPrediction
from keras_tfopt.training.coordinated_step import CoordinatedStep
from keras_tfopt.training.step_queue import StepQueue

# A mixin calls on itself what the model class after it has.
_Base: Any = object


class CoordinatedMixin(_Base):
    """Lets a Keras model train under `ParameterServerStrategy`.

    Keras' own `fit`, `evaluate` and `predict` run on the coordinator; their
    steps run on the workers. Under any other strategy nothing changes.
    """

    train_function: Any
    test_function: Any
    predict_function: Any
    _worker_dataset: Callable | None = None

    @property
    def distribute_strategy(self) -> Any:
        """The strategy that the model was made under."""
        strategy = super().distribute_strategy
        if is_asynchronous(strategy):
            return CoordinatorView(strategy)
        return strategy

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Configures the model for training, as `keras.Model.compile` does.

        Raises:
            ValueError: If workers that do not wait for each other cannot train
                it so.
        """
        if not self._is_coordinated():
            super().compile(*args, **kwargs)
            return
        _check_setting("jit_compile", kwargs.get("jit_compile"))
        _check_setting("run_eagerly", kwargs.get("run_eagerly"))
        super().compile(*args, **{**kwargs, "jit_compile": False})
        _check_optimizer(self.optimizer)

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Trains the model, as `keras.Model.fit` does.

        Under `ParameterServerStrategy` `x` may also be a callable that is given
        a `tf.distribute.InputContext` and returns a dataset that repeats. Then
        each worker draws its own batches, as many in all as `steps_per_epoch`.
        Otherwise the coordinator draws them, and each example is trained on
        once per epoch.

        Workers do not wait for each other, so that with several of them a
        training is another one than on one device. Callbacks see batches when
        they are handed out, with the logs of the latest that is known to be
        done, and epochs when all of their steps are done.

        Raises:
            ValueError: If a callable comes without `steps_per_epoch`.
        """
        if not self._is_coordinated() or not callable(x):
            return super().fit(x, *args, **kwargs)
        if args or not kwargs.get("steps_per_epoch"):
            raise ValueError(
                "Only `steps_per_epoch` tells where an epoch of datasets ends "
                "that workers draw from. Received: a callable with "
                f"steps_per_epoch={kwargs.get('steps_per_epoch')!r} and "
                f"{len(args)} more positional arguments. Expected: a number of "
                "steps, and all other arguments by their names."
            )
        self._worker_dataset = x
        try:
            tickets = tf.data.Dataset.from_tensors(0).repeat()
            return super().fit(tickets, **kwargs)
        finally:
            self._worker_dataset = None
            # A step that keeps no iterators, for the next data.
            self.train_function = None

    def make_train_function(self, force: bool = False) -> Any:
        """Makes the function that `fit` calls for each step."""
        if not self._is_coordinated():
            return super().make_train_function(force)
        function = self._make_step("train", force)
        function.read_from_workers(self._worker_dataset)
        return function

    def make_test_function(self, force: bool = False) -> Any:
        """Makes the function that `evaluate` calls for each step."""
        if not self._is_coordinated():
            return super().make_test_function(force)
        self._settle(self.train_function)
        return self._make_step("test", force)

    def make_predict_function(self, force: bool = False) -> Any:
        """Makes the function that `predict` calls for each step."""
        if not self._is_coordinated():
            return super().make_predict_function(force)
        self._settle(self.train_function)
        if self.predict_function is None or force:
            self.predict_function = CoordinatedPrediction(self, self._queue())
        return self.predict_function

    def _make_step(self, role: str, force: bool) -> CoordinatedStep:
        step = getattr(self, f"{role}_function")
        if step is None or force:
            step = CoordinatedStep(self, role, self._queue())
            setattr(self, f"{role}_function", step)
        step.reset()
        return step

    def _settle(self, function: Any) -> Any:
        """Waits for the steps that a function has handed out, if it has."""
        if isinstance(function, CoordinatedStep) and function.is_running:
            return function.settle()
        return None

    def _queue(self) -> StepQueue:
        return StepQueue(_compat.strategy_of(self))

    def _is_coordinated(self) -> bool:
        return is_asynchronous(_compat.strategy_of(self))

    def _maybe_symbolic_build(
        self, iterator: Any = None, data_batch: Any = None
    ) -> None:
        make = self._worker_dataset
        if make is not None:
            # What the coordinator draws are numbers of steps.
            iterator, data_batch = None, _first_batch(make)
        super()._maybe_symbolic_build(iterator, data_batch)

    def _get_metrics_result_or_logs(self, logs: Any) -> Any:
        # Keras calls this after the last step of an epoch, before it validates
        # or tells of the results.
        for function in (self.train_function, self.test_function):
            logs = self._settle(function) or logs
        return super()._get_metrics_result_or_logs(logs)


def _first_batch(dataset_fn: Callable) -> Any:
    context = tf.distribute.InputContext()
    return next(iter(dataset_fn(context)))


def _check_setting(name: str, value: Any) -> None:
    if value is True:
        raise ValueError(
            "Workers of ParameterServerStrategy run a graph that reads and "
            "writes variables of other processes, which XLA and eager "
            f"execution cannot. Received: {name}=True. Expected: {name}=False."
        )


def _check_optimizer(optimizer: keras.optimizers.Optimizer | None) -> None:
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "A loss scale follows steps one after another, and workers do not "
            "wait for each other. Received: LossScaleOptimizer. Expected: "
            "another optimizer; 'mixed_bfloat16' needs no loss scale."
        )
    steps = getattr(optimizer, "gradient_accumulation_steps", None)
    if steps:
        raise ValueError(
            "Workers that do not wait for each other would mix the gradients "
            "that they accumulate. Received: "
            f"gradient_accumulation_steps={steps} in the optimizer. Expected: "
            "none."
        )
