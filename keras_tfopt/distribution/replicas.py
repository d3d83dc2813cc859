"""The replicas of a distribution strategy, as lists with one entry each."""

from collections.abc import Callable
import contextlib
from typing import Any

import tensorflow as tf

from keras_tfopt import _compat

# Strategies whose replicas step together.
_SYNCHRONOUS = (
    tf.distribute.MirroredStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
    tf.distribute.OneDeviceStrategy,
)


def is_synchronous(strategy: tf.distribute.Strategy | None) -> bool:
    """Whether `Replicas` can run the replicas of a strategy."""
    return isinstance(strategy, _SYNCHRONOUS)


def spans_workers(strategy: tf.distribute.Strategy | None) -> bool:
    """Whether the replicas of a strategy live in several processes."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return False
    return strategy.num_replicas_in_sync > len(strategy.extended.worker_devices)


class Replicas:
    """Runs functions on all replicas of a strategy.

    What belongs to replicas is a list here, the first replica's part first.
    TensorFlow's own containers for this have no place in a nest of tensors.

    Args:
        strategy: `tf.distribute.Strategy` whose replicas step together.

    Attributes:
        count: Integer. Number of replicas in this process.
        total: Integer. Number of replicas in all processes.
        first: Integer. Place of the first one here among all of them.

    Raises:
        ValueError: If TensorFlow would not add up all of their gradients.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        count = len(strategy.extended.worker_devices)
        if count % 2 and _compat.adds_by_halves(strategy):
            raise ValueError(
                "HierarchicalCopyAllReduce leaves out the gradients of the "
                "last of an odd number of replicas. Received: "
                f"{count} replicas. Expected: an even number, or other "
                "`cross_device_ops` for MirroredStrategy."
            )
        self._strategy = strategy
        self.count = count
        self.total = strategy.num_replicas_in_sync
        self.first = 0

    def run(self, function: Callable, *arguments: list) -> list:
        """Calls a function once per replica, on its device.

        Args:
            function: Callable.
            *arguments: Lists with one entry per replica.

        Returns:
            List of what it returned on each replica.
        """
        results: list[Any] = [None] * self.count

        def run_one() -> None:
            context = tf.distribute.get_replica_context()
            place = int(tf.get_static_value(context.replica_id_in_sync_group))
            index = place - self.first
            results[index] = function(*(one[index] for one in arguments))

        self._strategy.run(run_one)
        return results

    def everywhere(self, parts: list) -> list:
        """Returns what all replicas have, of all processes.

        Args:
            parts: List of nests of tensors, what the replicas here have.

        Returns:
            List with one entry for each of the `total` replicas.
        """
        return parts

    def as_first(self) -> contextlib.AbstractContextManager:
        """Returns a context in which variables are those of replica 0."""
        return tf.distribute.ReplicaContext(self._strategy, 0)

    def local_parts(self, batch: Any) -> list | None:
        """Returns the replicas' parts of a batch that TensorFlow distributed.

        Args:
            batch: Nest of what an iterator of the strategy delivers.

        Returns:
            List of nests of the same structure; `None` if the batch is not
            distributed.
        """
        leaves = tf.nest.flatten(batch)
        columns = [self._strategy.experimental_local_results(x) for x in leaves]
        if not any(
            isinstance(leaf, tf.distribute.DistributedValues) for leaf in leaves
        ):
            return None
        # `None` belongs to no replica.
        columns = [
            column * (self.count if len(column) == 1 else 1)
            for column in columns
        ]
        return [
            tf.nest.pack_sequence_as(
                batch, [column[index] for column in columns]
            )
            for index in range(self.count)
        ]

    def distribute(self, parts: list) -> Any:
        """Returns parts as TensorFlow distributes a batch."""
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group - self.first]
        )

    @staticmethod
    def reduce_sum(gradients: list) -> list:
        """Adds up the gradients of all replicas, inside of `run`.

        Args:
            gradients: List of dense and sparse gradients and `None`.

        Returns:
            List of the sums; `None` stays `None`.
        """
        # Collectives need a tensor that has a device.
        known = [
            tf.nest.map_structure(tf.identity, gradient, expand_composites=True)
            for gradient in gradients
            if gradient is not None
        ]
        if not known:
            return gradients
        context = tf.distribute.get_replica_context()
        sums = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, known))
        return [None if one is None else next(sums) for one in gradients]
