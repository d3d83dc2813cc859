"""Trains in memory that is in pieces, on an allocator with a limit.

The weights of a tower of frozen layers have holes between them, none of which
is large enough for what a step needs. Prints what became of it as JSON.
"""

import json

import keras
import numpy as np
import tensorflow as tf

from keras_tfopt import callbacks
from keras_tfopt.memory import Eviction
from keras_tfopt.memory import read_fragmentation
from keras_tfopt.training import guard_of
from keras_tfopt.training import release_guard
from keras_tfopt.training.failure import Remedy
from tests.equivalence import state_of

MIB = 2**20
LIMIT = 160
LAYERS = 24
# Makes weights of 2 MiB.
UNITS = 724
# A step needs 28 MiB in one piece.
TILES = 1024
ROWS = 10


class Workspace(keras.layers.Layer):
    """Needs a large tensor for a moment, and passes its inputs on."""

    def call(self, inputs):
        wide = tf.tile(inputs, [1, TILES])
        return inputs + 0.0 * tf.reduce_mean(wide, axis=1, keepdims=True)


class Retry(Remedy, keras.callbacks.Callback):
    """Runs a batch again as it was, once."""

    def __init__(self):
        super().__init__()
        self.failures = 0

    def on_train_begin(self, logs=None):
        guard_of(self.model).control.register(self)

    def on_train_end(self, logs=None):
        release_guard(self.model, "train", self)

    def propose(self, failure):
        self.failures += 1
        return (failure.plan, "again") if self.failures == 1 else None


def towers():
    """Returns a model that needs a workspace, and one on the same weights."""
    keras.utils.set_random_seed(0)
    inputs = outputs = keras.Input((UNITS,))
    for _ in range(LAYERS):
        outputs = keras.layers.Dense(UNITS, use_bias=False, trainable=False)(
            outputs
        )
    head = keras.layers.Dense(1)
    needy = keras.Model(inputs, head(Workspace()(outputs)))
    modest = keras.Model(inputs, head(outputs))
    for model in (needy, modest):
        model.compile(keras.optimizers.SGD(1e-4, momentum=0.9), "mse")
        model.optimizer.build(model.trainable_variables)
    return needy, modest


def put_holes_between(variables):
    """Gives each variable a place of its own; returns what holds the rest."""
    large = [variable for variable in variables if variable.shape[-1] == UNITS]
    evictions = [Eviction([variable]) for variable in large]
    fillers, rest = [], []
    for eviction in evictions:
        eviction.restore()
        fillers.append(tf.zeros((2 * MIB,), tf.uint8))
    while read_fragmentation().largest_free_bytes > 6 * MIB:
        rest.append(tf.zeros((2 * MIB,), tf.uint8))
    return rest


def fit(model, *added):
    """Trains an epoch of three batches."""
    x = np.random.default_rng(0).normal(size=(3 * ROWS, UNITS))
    model.fit(
        x.astype("float32"),
        np.ones((3 * ROWS, 1)),
        batch_size=ROWS,
        shuffle=False,
        verbose=0,
        callbacks=list(added),
    )


def is_same(state, before):
    return all(np.array_equal(state[path], before[path]) for path in before)


def figures(compaction):
    return [
        [found.ratio, found.largest_free_bytes]
        for found in (compaction.before, compaction.after)
    ]


def main():
    """Prints what a retry, and what compaction makes of steps."""
    # One region, in which all free blocks can become one.
    tf.zeros(((LIMIT - 8) * MIB,), tf.uint8)
    needy, modest = towers()
    fit(modest)
    start = state_of(needy)
    rest = put_holes_between(needy.variables)
    found = {"moved": is_same(state_of(needy), start)}
    retry = Retry()
    try:
        fit(needy, retry)
    except tf.errors.ResourceExhaustedError:
        found["failures"] = retry.failures
    found["untouched"] = is_same(state_of(needy), start)
    monitor = callbacks.FragmentationMonitor(on_breach="compact")
    fit(needy, monitor)
    found["remedy"] = [figures(c) for c in monitor.compactions]
    found["trained"] = [v.numpy().tolist() for v in needy.trainable_variables]
    found["overhead"] = monitor.overhead_seconds
    for variable, value in zip(needy.variables, start.values(), strict=False):
        variable.assign(value)
    rest += put_holes_between(needy.variables)
    monitor = callbacks.FragmentationMonitor(
        interval_steps=1, on_breach="compact"
    )
    fit(modest, monitor)
    found["between"] = [figures(c) for c in monitor.compactions]
    fit(needy)
    found["rest"] = len(rest)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
