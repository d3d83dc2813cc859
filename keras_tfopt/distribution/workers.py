"""Replicas that live in several processes, each with some of them."""

import math
from typing import Any

import tensorflow as tf

from keras_tfopt.distribution.replicas import Replicas

# What collectives take, for what they do not.
_WIDER = {
    tf.bool: tf.int32,
    tf.uint8: tf.int32,
    tf.int8: tf.int32,
    tf.uint16: tf.int32,
    tf.int16: tf.int32,
    tf.uint32: tf.int64,
    tf.float16: tf.float32,
    tf.bfloat16: tf.float32,
}


class WorkerReplicas(Replicas):
    """Runs functions on the replicas of this process, one of several.

    Args:
        strategy: `tf.distribute.MultiWorkerMirroredStrategy`.

    Attributes:
        worker: Integer. Place of this process among the workers; the chief is
            the first.
        workers: Integer. Number of processes.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        super().__init__(strategy)
        resolver = strategy.cluster_resolver
        chiefs = len(resolver.cluster_spec().as_dict().get("chief", []))
        is_chief = resolver.task_type == "chief"
        self.worker = resolver.task_id + (0 if is_chief else chiefs)
        self.workers = self.total // self.count
        self.first = self.worker * self.count

    def everywhere(self, parts: list) -> list:
        """Returns what all replicas have, of all processes.

        A collective: all processes must call it, with nests of the same
        structure and shapes. Values come through unchanged.

        Args:
            parts: List of nests of tensors, what the replicas here have.

        Returns:
            List with one entry for each of the `total` replicas.
        """
        flat = [
            [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(part)]
            for part in parts
        ]
        dtypes = [leaf.dtype for leaf in flat[0]]
        shapes = [leaf.shape for leaf in flat[0]]
        found: list[list[Any]] = [
            [None] * len(dtypes) for _ in range(self.total)
        ]
        for wide in dict.fromkeys(map(_wide, dtypes)):
            of_kind = [
                i for i, dtype in enumerate(dtypes) if _wide(dtype) == wide
            ]
            table = self._table(
                [[tf.cast(leaves[i], wide) for i in of_kind] for leaves in flat]
            )
            sizes = [math.prod(shapes[i]) for i in of_kind]
            columns = tf.split(table, sizes, axis=1)
            for i, column in zip(of_kind, columns, strict=True):
                for place in range(self.total):
                    value = tf.reshape(column[place], shapes[i])
                    found[place][i] = tf.cast(value, dtypes[i])
        return [tf.nest.pack_sequence_as(parts[0], leaves) for leaves in found]

    def _table(self, parts: list[list[tf.Tensor]]) -> tf.Tensor:
        """Returns a row for each replica: its values, one after the other."""

        def fill(leaves: list[tf.Tensor], index: int) -> tf.Tensor:
            row = tf.concat([tf.reshape(leaf, [-1]) for leaf in leaves], 0)
            place = self.first + index
            margins = [[place, self.total - 1 - place], [0, 0]]
            # Sums of one value and zeros are exact.
            return self.reduce_sum([tf.pad(row[None], margins)])[0]

        return self.run(fill, parts, list(range(self.count)))[0]


def _wide(dtype: tf.DType) -> tf.DType:
    return _WIDER.get(dtype, dtype)
