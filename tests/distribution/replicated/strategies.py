"""Strategies over the logical CPUs that the tests share."""

import functools

import numpy as np

from keras_tfopt import distribution


def mirrored(count=2, cross_device_ops=None):
    """Returns a strategy over the first CPUs."""
    devices = [f"CPU:{index}" for index in range(count)]
    return distribution.strategy(
        "mirrored", devices=devices, cross_device_ops=cross_device_ops
    ).strategy


def all_parts(model, variables):
    """Returns what each replica holds, for each variable."""
    local = model.distribute_strategy.experimental_local_results
    return [[np.array(part) for part in local(v.value)] for v in variables]


def under(strategy, make):
    """Returns a function that makes a model in the scope of a strategy."""

    @functools.wraps(make)
    def made(*args, **kwargs):
        with strategy.scope():
            return make(*args, **kwargs)

    return made
