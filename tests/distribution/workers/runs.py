"""A training on several workers that is interrupted, and goes on."""

import os
import signal

import keras
import numpy as np
import tensorflow as tf

from keras_tfopt import callbacks
from tests import models

EPOCHS = 2


class At(keras.callbacks.Callback):
    """Sends its own process a signal at one step of one epoch."""

    def __init__(self, epoch, step, number):
        super().__init__()
        self.epoch, self.step, self.number = epoch, step, number
        self.now = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.now, batch) == (self.epoch, self.step):
            os.kill(os.getpid(), self.number)

    def get_state(self):
        return None

    def set_state(self, state):
        """Goes by the place in the run, not by what went before."""


def data():
    """Returns batches of 8, 8, 8 and 2 rows in another order each epoch."""
    rows = tf.data.Dataset.from_tensor_slices((models.X, models.Y))
    return rows.shuffle(26, seed=5).batch(8)


def network(cls, **settings):
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(5, activation="tanh")(inputs)
    hidden = keras.layers.BatchNormalization()(hidden)
    hidden = keras.layers.Dropout(0.3, seed=3)(hidden)
    model = cls(inputs, keras.layers.Dense(1)(hidden), **settings)
    return models.compiled(model, optimizer=keras.optimizers.Adam(0.05))


def train_simply(place, folder=None, faults=()):
    """Trains what one device trains alike, from arrays."""
    return train(
        place,
        folder,
        faults,
        models.regressor,
        (models.X, models.Y, 2),
    )


def train(place, folder=None, faults=(), make=network, arrays=None):
    """Trains, with backups if there is a folder for them."""
    own = [At(*fault) for index, *fault in faults if index == place.index]
    if folder is not None:
        own.insert(0, callbacks.BackupAndRestore(folder, save_freq=1))

    def fit(model):
        schedule = keras.callbacks.ReduceLROnPlateau(
            "loss", patience=1, min_delta=0.5
        )
        x, y, epochs = arrays or (data(), None, EPOCHS)
        return models.fit(
            model, x, y, epochs=epochs, callbacks=[schedule, *own]
        )

    return place.run(make, fit, microbatch_size=2)


def interrupted(folder, outcome, faults):
    """Returns the work of a worker whose run may be cut short."""

    def work(place):
        found = train(place, folder / "backup", faults)
        undisturbed = train(place)
        np.savez(
            outcome / f"{place.index}.npz",
            **{f"actual|{k}".replace("/", "|"): v for k, v in found.items()},
            **{
                f"expected|{k}".replace("/", "|"): v
                for k, v in undisturbed.items()
            },
        )

    return work


TERM, KILL = int(signal.SIGTERM), int(signal.SIGKILL)
# What happens in each attempt, as index of the worker, epoch, step and signal.
ATTEMPTS = (
    [(1, 0, 2, TERM)],
    [(0, 1, 1, KILL)],
    [],
)
