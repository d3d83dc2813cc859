"""The first batch of a `fit`, and whether workers were given the same one."""

from typing import Any
import warnings
import zlib

import numpy as np
import tensorflow as tf

from keras_tfopt import _compat_fit
from keras_tfopt.distribution.agreement import agreement_of
from keras_tfopt.distribution.agreement import lost_workers
from keras_tfopt.distribution.replicas import spans_workers


def first_part(strategy: tf.distribute.Strategy, epoch_iterator: Any) -> Any:
    """Returns the first replica's part of the first batch of an epoch.

    Args:
        strategy: `tf.distribute.Strategy`.
        epoch_iterator: What `fit` or `evaluate` iterates over.

    Raises:
        ValueError: If several workers were given the same data.
    """
    with lost_workers():
        batch = next(next(iter(epoch_iterator))[-1])
    local = strategy.experimental_local_results
    leaves = [local(leaf) for leaf in tf.nest.flatten(batch)]
    if spans_workers(strategy):
        sharding = _compat_fit.own_sharding(epoch_iterator)
        if sharding is not None:
            _check_different(strategy, leaves, sharding)
        elif _compat_fit.shuffles_arrays(epoch_iterator):
            _check_order(strategy)
    return tf.nest.pack_sequence_as(batch, [parts[0] for parts in leaves])


def _check_order(strategy: tf.distribute.Strategy) -> None:
    seed = _compat_fit.global_seed()
    told = agreement_of(strategy).gather([seed or 0, int(seed is None)])
    if told[0] == [seed or 0, 0] and all(one == told[0] for one in told):
        return
    warnings.warn(
        "Workers shuffle arrays in orders of their own, so that an epoch has "
        "some examples twice and others not at all. Call "
        "`keras.utils.set_random_seed` with the same seed on all workers "
        "before `fit`.",
        stacklevel=2,
    )


def _check_different(
    strategy: tf.distribute.Strategy, leaves: list[tuple], sharding: str
) -> None:
    parts = [
        part.numpy()
        for column in leaves
        for part in column
        if isinstance(part, tf.Tensor)
    ]
    told = agreement_of(strategy).gather([_checksum(parts), _differs(parts)])
    sums = [checksum for checksum, differs in told if differs]
    if len(set(sums)) == len(sums):
        return
    raise ValueError(
        "Several workers train on the same data, so that each example counts "
        f"more than once. Received: equal first batches, from {sharding}. "
        "Expected: another part of the data on each worker. Set "
        "`options.experimental_distribute.auto_shard_policy` to "
        "`tf.data.experimental.AutoShardPolicy.DATA`, or give each worker its "
        "part by `dataset.shard(workers, index)` before the batches are made."
    )


def _checksum(parts: list[np.ndarray]) -> int:
    checksum = 0
    for part in parts:
        data = part.tobytes() if part.dtype != object else repr(part).encode()
        checksum = zlib.crc32(data, checksum)
    return checksum


def _differs(parts: list[np.ndarray]) -> bool:
    """Whether rows differ, so that equal batches are no coincidence."""
    return any(
        np.ndim(part) > 0 and len(part) > 0 and _varies(part) for part in parts
    )


def _varies(part: np.ndarray) -> bool:
    if len(part) > 1:
        return bool((part != part[:1]).any())
    return bool((part.reshape(-1) != part.reshape(-1)[0]).any())
