"""One step over replicas: what they start from, and their results as one.

Replicas are to a step what micro-batches are: parts of a batch, whose sums add
up as long as each knows the rows and the denominators of the whole.
"""

import functools
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt.accumulation.batch_norm import Moments
from keras_tfopt.accumulation.batch_norm import merge_all_moments
from keras_tfopt.accumulation.microstep import Share
from keras_tfopt.accumulation.pure_step import Accumulation
from keras_tfopt.accumulation.state import is_seed

# Odd and large: the seeds of two replicas have no neighbours in common.
_SEED_STRIDE = 0x9E3779B1


def merge_shares(shares: list[Share]) -> list[Share]:
    """Returns what each replica must know of the whole batch.

    Args:
        shares: Rows and denominators of each replica's part.
    """
    rows, denominators, _ = zip(*shares, strict=True)
    firsts = [tf.constant(0)]
    for part in rows[:-1]:
        firsts.append(firsts[-1] + part)
    total = Share(tf.add_n(rows), tf.add_n(denominators), firsts[0])
    return [total._replace(first_row=first) for first in firsts]


def start_on_replica(
    total: Accumulation, carried: list[keras.Variable], replica: int
) -> Accumulation:
    """Returns what a replica starts from: with seeds of its own.

    Keras draws the same dropout mask on all replicas. The first replica's seeds
    are those of a step on one device.

    Args:
        total: `Accumulation` of no micro-batch.
        carried: The variables whose values are in its `state`.
        replica: Integer. Index of the replica.
    """
    state = [
        value + _seed_offset(value, replica) if is_seed(variable) else value
        for variable, value in zip(carried, total.state, strict=True)
    ]
    return total._replace(state=state)


def _seed_offset(seed: tf.Tensor, replica: int) -> tf.Tensor:
    offset = replica * _SEED_STRIDE % 2**31
    return tf.constant([offset] + [0] * (seed.shape[0] - 1), seed.dtype)


def merge_replicas(
    totals: list[Accumulation],
    moments: list[list[list[Moments]]],
    first: list[tf.Tensor],
    carried: list[keras.Variable],
) -> list[Accumulation]:
    """Returns what each replica is going to write.

    Statistics and seeds become the same on all replicas. Metrics stay sums over
    the rows of each, which Keras adds up when it reads them.

    Args:
        totals: `Accumulation` of each replica of this process.
        moments: Merged `Moments` of each replica, of all processes.
        first: Values of `carried` on the very first replica. It has the most
            rows, so it has drawn most often.
        carried: The variables whose values are in the `state` of each.
    """
    merged = functools.reduce(merge_all_moments, moments)
    return [
        total._replace(
            moments=merged,
            state=[
                first[index] if is_seed(variable) else total.state[index]
                for index, variable in enumerate(carried)
            ],
        )
        for total in totals
    ]


def sum_states(
    states: list[list[tf.Tensor]], carried: list[keras.Variable]
) -> list[tf.Tensor]:
    """Returns values of carried variables as they read outside of replicas.

    Args:
        states: Values of `carried` on each replica.
        carried: The variables.
    """
    return [
        parts[0] if is_seed(variable) else tf.add_n(list(parts))
        for variable, parts in zip(
            carried, zip(*states, strict=True), strict=True
        )
    ]


def average_logs(logs: list[Any], rows: list[tf.Tensor]) -> Any:
    """Returns the mean of logs that a model makes itself, weighted by rows."""
    total = tf.cast(tf.add_n(rows), tf.float32)
    shares = [
        tf.math.divide_no_nan(tf.cast(one, tf.float32), total) for one in rows
    ]

    def average(*values: Any) -> tf.Tensor:
        return tf.add_n(
            [
                tf.cast(value, tf.float32) * share
                for value, share in zip(values, shares, strict=True)
            ]
        )

    return tf.nest.map_structure(average, *logs)


def unmergeable_state(
    model: keras.Model, carried: list[keras.Variable]
) -> list[str]:
    """Returns the carried variables that have no meaning over replicas."""
    metrics = {id(variable) for variable in model.metrics_variables}
    return [
        variable.path
        for variable in carried
        if id(variable) not in metrics and not is_seed(variable)
    ]
