"""The step that a coordinator hands to workers which share variables."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import functools
import logging
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.accumulation.backward_order import together
from keras_tfopt.training.applied_steps import AppliedSteps
from keras_tfopt.training.batch import to_tensors
from keras_tfopt.training.checks import overridden_step
from keras_tfopt.training.metric_updates import MetricTotals
from keras_tfopt.training.metric_updates import check_additive
from keras_tfopt.training.metric_updates import collected_updates
from keras_tfopt.training.step_queue import StepQueue

_logger = logging.getLogger("keras_tfopt")


class CoordinatedStep:
    """Stands in for `model.train_function` or `model.test_function`.

    Each call draws a batch and hands it to a worker, without waiting for it.
    Workers read and write the variables on the parameter servers whenever they
    are ready, so that gradients may be those of weights that others have
    changed meanwhile: the training is that of one device only if there is one
    worker. What a step adds to metrics comes back to the coordinator, which
    adds it up when the step is done: once, even if a worker died over it.

    Args:
        model: A compiled Keras model under a parameter server strategy.
        role: String. `"train"` or `"test"`.
        queue: `StepQueue`.
    """

    def __init__(self, model: keras.Model, role: str, queue: StepQueue) -> None:
        self._model = model
        self._role = role
        self._queue = queue
        self._totals = MetricTotals(model)
        self._logs: dict[str, Any] = {}
        self._first_update: int | None = None
        self._done = 0
        self._iterators: Any = None
        self._strategy = queue.strategy
        self._on_batch = tf.function(
            self._run, autograph=False, reduce_retracing=True
        )
        self._on_iterator = tf.function(self._run_next, autograph=False)
        check_additive(model)
        self._applied: AppliedSteps | None = None
        is_stock = not overridden_step(model, role)
        if role == "train" and is_stock and model.optimizer is not None:
            self._applied = AppliedSteps(self._strategy, queue.limit + 1)

    @property
    def is_running(self) -> bool:
        """Whether there were steps since the last `settle`."""
        return self._first_update is not None

    def read_from_workers(self, dataset_fn: Callable | None) -> None:
        """Lets workers draw batches from datasets of their own.

        Args:
            dataset_fn: Callable that is given a `tf.distribute.InputContext`
                and returns a dataset; `None` for the coordinator's batches.
        """
        self._iterators = None
        if dataset_fn is None:
            return
        strategy = self._strategy
        datasets = self._queue.coordinator.create_per_worker_dataset(
            lambda: strategy.distribute_datasets_from_function(dataset_fn)
        )
        self._iterators = iter(datasets)

    def __call__(self, iterator: Iterator) -> dict[str, Any]:
        """Hands `steps_per_execution` batches to workers.

        Returns:
            Dict. The logs after the latest step that is known to be done; empty
            as long as there is none.

        Raises:
            StopIteration: If the iterator is exhausted.
        """
        if self._first_update is None:
            self._first_update = self._count_updates()
        for place in range(self._model.steps_per_execution):
            try:
                batch = next(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                if place:
                    break
                raise StopIteration from None
            if self._iterators is None:
                function, source = self._on_batch, to_tensors(batch)
            else:
                function, source = self._on_iterator, self._iterators
            number = self._applied.new_step() if self._applied else None
            self._queue.schedule(function, source, number)
            self._take(self._queue.results())
        if not isinstance(iterator, tf.data.Iterator):
            # `train_on_batch` has no epoch whose end could wait.
            return self.settle()
        return self._logs

    def settle(self) -> dict[str, Any]:
        """Waits for all steps, and returns the logs after the last one.

        Afterwards variables and metrics are those of all steps so far.
        """
        self._take(self._queue.rest())
        self._totals.write()
        self._check_updates()
        return self._logs

    def reset(self) -> None:
        """Forgets steps that an exception left behind."""
        self._queue.clear()
        self._totals.forget()
        self._logs = {}
        self._first_update = None
        self._done = 0

    def _take(self, results: Iterator) -> None:
        for logs, updates in results:
            known = self._totals.add(updates)
            # A step of one's own may return more than metrics, or less.
            self._logs = {name: known.get(name, logs[name]) for name in logs}
            self._done += 1

    def _run(self, batch: Any, number: tf.Tensor | None) -> Any:
        if self._applied is None:
            arguments = (batch, number)
            return self._strategy.run(self._run_on_worker, args=arguments)
        # What `run` does for one replica, but without a thread of its own, in
        # which conditionals could not update variables. There is nothing to
        # add up over replicas.
        with (
            _compat.without_reduction(self._model.optimizer),
            tf.distribute.ReplicaContext(self._strategy, 0),
        ):
            return self._run_on_worker(batch, number)

    def _run_next(self, iterator: Iterator, number: tf.Tensor | None) -> Any:
        return self._run(to_tensors(next(iterator)), number)

    def _run_on_worker(
        self, batch: Any, number: tf.Tensor | None
    ) -> tuple[dict, list]:
        model = self._model
        with collected_updates(model) as updates:
            if self._role == "test":
                return model.test_step(batch), updates()
            with _shared_updates(model.optimizer, self._once(number)):
                logs = model.train_step(batch)
            return logs, updates()

    def _once(self, number: tf.Tensor | None) -> Callable:
        """Returns what calls a function, unless that was done for a step."""
        if self._applied is None:
            return lambda apply: apply()
        return functools.partial(self._applied.apply_once, number)

    def _count_updates(self) -> int:
        optimizer = self._model.optimizer
        if self._role != "train" or optimizer is None:
            return 0
        return int(optimizer.iterations.numpy())

    def _check_updates(self) -> None:
        """Tells of updates of workers that died before they could report."""
        first, self._first_update = self._first_update, None
        done, self._done = self._done, 0
        if self._role != "train" or overridden_step(self._model, "train"):
            return
        if first is None or self._model.optimizer is None:
            return
        more = self._count_updates() - first - done
        if more > 0:
            _logger.warning(
                "Workers died while they applied %d of %d updates. Their steps "
                "ran again; `optimizer.iterations` counts both.",
                more,
                done,
            )


@contextlib.contextmanager
def _shared_updates(
    optimizer: keras.optimizers.Optimizer | None, once: Callable
) -> Iterator[None]:
    """Makes the updates of an optimizer fit to be applied by several workers.

    While the graph of a step is made, the counter of updates adds in one
    operation, since Keras' own reads, adds and writes. And no gradient is
    applied before all of them are there, so that a worker that fails until then
    leaves the weights alone.

    Args:
        optimizer: Optimizer or `None`.
        once: Callable that is given what applies the gradients.
    """
    if optimizer is None:
        yield
        return
    counter, apply = optimizer.iterations, optimizer.apply

    def add(value: Any) -> None:
        counter.value.assign_add(tf.cast(value, counter.dtype))

    def apply_together(grads: list, *args: Any, **kwargs: Any) -> None:
        gradients = together(grads)
        once(lambda: apply(gradients, *args, **kwargs))

    # In `vars`, past the tracking of `__setattr__`.
    vars(counter)["assign_add"] = add
    vars(optimizer)["apply"] = apply_together
    try:
        yield
    finally:
        del vars(counter)["assign_add"]
        del vars(optimizer)["apply"]
