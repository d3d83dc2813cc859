"""Steps that the workers of a parameter server strategy run."""

import collections
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

# One that runs, and one that waits while the coordinator looks at results.
_STEPS_PER_WORKER = 2


class StepQueue:
    """Hands steps to workers, and their results back in the same order.

    A worker takes the next step when it is done with one. The step of a worker
    that dies goes to another one.

    Args:
        strategy: `tf.distribute.ParameterServerStrategy`.

    Attributes:
        strategy: The strategy.
        limit: Integer. How many steps may wait when another one comes.
        coordinator: `tf.distribute.coordinator.ClusterCoordinator`.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy
        # The same object for the same strategy.
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(
            strategy
        )
        devices = tf.config.list_logical_devices("CPU")
        workers = sum("/job:worker/" in device.name for device in devices)
        self.limit = _STEPS_PER_WORKER * workers
        self._pending: collections.deque = collections.deque()

    def schedule(self, function: Any, *arguments: Any) -> None:
        """Hands a step to the next worker that is free.

        Args:
            function: A `tf.function`.
            *arguments: Nests of tensors.
        """
        with _explained(self):
            step = self.coordinator.schedule(function, args=arguments)
        self._pending.append(step)

    def results(self) -> Iterator[Any]:
        """Iterates over the oldest results, until no more steps wait than may.

        Only so many batches are held.
        """
        while len(self._pending) > self.limit:
            yield self._next()

    def rest(self) -> Iterator[Any]:
        """Iterates over the results of all steps that were scheduled."""
        while self._pending:
            yield self._next()

    def clear(self) -> None:
        """Waits for all steps and forgets their results and their errors."""
        self._pending.clear()
        try:
            self.coordinator.join()
        except tf.errors.OpError:
            # That of steps which nobody waits for.
            pass

    def _next(self) -> Any:
        with _explained(self):
            step = self._pending.popleft()
            try:
                return step.get()
            except tf.errors.UnavailableError:
                # The worker died with the result, and the step runs again.
                self.coordinator.join()
                return step.get()
            except tf.errors.OpError:
                # The error of the step that others were cancelled for.
                self.coordinator.join()
                raise


class _explained:  # noqa: N801
    """Empties a queue whose step failed, and says what the error means."""

    def __init__(self, queue: StepQueue) -> None:
        self._queue = queue

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Raises errors that Keras takes for the end of the data as others."""
        if error is None:
            return
        self._queue._pending.clear()
        if isinstance(error, tf.errors.UnavailableError):
            error.add_note(
                "A parameter server has ended, and its variables with it. "
                "Start the whole cluster again, from a checkpoint."
            )
        if isinstance(error, tf.errors.OutOfRangeError):
            raise ValueError(
                "The dataset of a worker has ended. Received: a `dataset_fn` "
                "with fewer batches than `steps_per_epoch` asks for. Expected: "
                "one that repeats, such as `dataset.repeat()`."
            ) from error
