"""Trains two models by turns, with room for one at a time.

Arguments: a file for the weights, and a folder to swap to, if not to the host.
Prints what it cost as JSON.
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

from keras_tfopt.memory import SwapManager
from keras_tfopt.memory import read_allocator_stats
from keras_tfopt.memory import reset_allocator_peak

LIMIT = 120
BUDGET = 70 * 2**20
ROUNDS = 3
UNITS = 1024


def make_models():
    """Returns two models that have 60 MiB each, slots included."""
    keras.utils.set_random_seed(0)
    models = []
    for activation in ("tanh", "relu"):
        layers = [
            keras.layers.Dense(UNITS, activation=activation) for _ in range(5)
        ]
        model = keras.Sequential([keras.Input((UNITS,)), *layers])
        model.compile("adam", "mse")
        models.append(model)
    return models


def train(models):
    """Trains each model for two steps, by turns."""
    x = np.random.default_rng(0).normal(size=(16, UNITS)).astype("float32")
    for _ in range(ROUNDS):
        for model in models:
            model.fit(x, x, batch_size=8, shuffle=False, verbose=0)


def weights_of(models):
    """Returns weights and slots, under names that do not depend on the run."""
    return {
        f"{number}-{index}": variable.numpy()
        for number, model in enumerate(models)
        for index, variable in enumerate(
            [*model.weights, *model.optimizer.variables]
        )
    }


def train_by_turns(swap, models):
    """Trains the models under a swap manager, and returns what it cost."""
    for name, model in zip("ab", models, strict=True):
        swap.add(name, model)
    reset_allocator_peak()
    train(models)
    return {
        "peak": read_allocator_stats().peak_bytes,
        **swap.counters.metrics(),
        "in": swap.counters.seconds_per_gib("in"),
        "out": swap.counters.seconds_per_gib("out"),
    }


def main(path, directory):
    """Trains with a tier, and then tries to hold both models."""
    swap = SwapManager(
        BUDGET, tier="disk" if directory else "host", directory=directory
    )
    models = make_models()
    found = train_by_turns(swap, models)
    np.savez(path, **weights_of(models))
    if not directory:
        try:
            train_without(swap, models)
        except tf.errors.ResourceExhaustedError:
            found["without"] = "out of memory"
    print(json.dumps(found))


def train_without(swap, models):
    """Trains the same two models with all of both on the device."""
    swap.close()
    train(models)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
