"""A training script for a process of its own, which it disturbs at random.

Each run is a child that starts from nothing but the imported libraries. The
first one of a sequence is left alone and sees no bad batch; the others share a
folder on a small disk, run out of memory, are refused by XLA, meet NaN, find
the disk full, and are killed, until the last one ends by itself.
"""

import contextlib
import functools
import logging
import os
import pathlib
import random
import sys
import threading
import time

import keras
import numpy as np
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from keras_tfopt import distribution
from tests.callbacks.killed_training import Shortage
from tests.callbacks.killed_training import die
from tests.callbacks.killed_training import die_within_write
from tests.callbacks.killed_training import in_child
from tests.callbacks.killed_training import named
from tests.equivalence import state_of

EPOCHS = 3
BATCH, BATCHES = 6, 9
KILLS = 2
STEP_SECONDS = 0.03

# Faults, and what ends those that last. The first two leave the arithmetic.
FAULTS = [("refuse", None), ("fill", "empty"), ("shorten", "lengthen")]


class Journal(logging.Handler):
    """Appends what is logged to a file, which no kill can take back."""

    def __init__(self, path):
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def emit(self, record):
        line = record.getMessage().replace("\n", " ")
        os.write(self._file, f"{line}\n".encode())


class Faults(keras.callbacks.Callback):
    """Does something before given steps of this process.

    Args:
        faults: Dict of lists of callables, by step.
    """

    def __init__(self, faults):
        super().__init__()
        self.faults = faults
        self.step = 0

    def get_state(self):
        return None

    def set_state(self, state):
        """Counts the steps of this process."""

    def on_train_batch_begin(self, batch, logs=None):
        for act in self.faults.get(self.step, ()):
            act()
        self.step += 1
        time.sleep(STEP_SECONDS)


class Disk:
    """A folder whose file system can be filled."""

    def __init__(self, folder):
        self.filler = pathlib.Path(folder) / "filler"

    def fill(self):
        with (
            contextlib.suppress(OSError),
            open(self.filler, "ab", buffering=0) as file,
        ):
            while True:
                file.write(bytes(512))

    def empty(self):
        self.filler.unlink(missing_ok=True)


def batches(bad, is_disturbed):
    """Shuffled batches, of which those that are bad hold NaN, or are absent."""
    random_values = np.random.default_rng(0)
    x = random_values.normal(size=(BATCH * BATCHES, 4))
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1] * x[:, 1:2]))
    data = data.shuffle(20, seed=1).batch(BATCH).enumerate()
    if is_disturbed:
        nan = tf.constant(np.nan, tf.float64)
        return data.map(
            lambda index, batch: (
                batch[0],
                batch[1] + tf.where(_is_in(index, bad), nan, 0),
            )
        )
    data = data.filter(lambda index, batch: ~_is_in(index, bad))
    data = data.map(lambda index, batch: batch)
    return data.apply(
        tf.data.experimental.assert_cardinality(BATCHES - len(bad))
    )


def _is_in(index, numbers):
    return tf.reduce_any(index == np.array(numbers, "int64"))


def network(cls, layers, **settings):
    outputs = inputs = keras.Input((4,))
    for layer in (*layers, keras.layers.Dense(1)):
        outputs = layer(outputs)
    return cls(inputs, outputs, **settings)


def whole(is_disturbed, shortage):
    """All kinds of state, and no fault that changes the arithmetic."""
    del is_disturbed
    layers = [
        shortage,
        keras.layers.Dense(8, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
    ]
    return network(keras.Model, layers), FAULTS[:2]


def split(is_disturbed, shortage):
    """Double precision, in which splitting differs by less than can grow."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    layers = [
        shortage,
        keras.layers.Dense(8, activation="tanh"),
        distribution.PerExampleDropout(0.3),
    ]
    if is_disturbed:
        return network(AccumModel, layers, accumulation_steps=2), FAULTS
    return network(keras.Model, layers), []


SCENARIOS = {"whole": whole, "split": split}


def train(scenario, bad, outcome, disk=None, chance=None, is_killed=False):
    """Trains once; undisturbed without a disk."""
    keras.utils.set_random_seed(3)
    shortage = Shortage()
    model, kinds = SCENARIOS[scenario](disk is not None, shortage)
    model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
    used = [
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=0.1)
    ]
    if disk is not None:
        journal = Journal(outcome.with_name("journal"))
        logger = logging.getLogger("keras_tfopt")
        logger.addHandler(journal)
        logger.setLevel(logging.INFO)
        xla = callbacks.XLACompilation("off")
        acts = {
            "refuse": lambda: xla.switch("on"),
            "shorten": lambda: setattr(shortage, "is_short", True),
            "lengthen": lambda: setattr(shortage, "is_short", False),
            "fill": Disk(disk).fill,
            "empty": Disk(disk).empty,
        }
        used += [
            callbacks.OOMRecovery(grow_after=2),
            xla,
            callbacks.NonFiniteRollback(
                max_bad_batches=99, report_path=outcome.with_suffix(".json")
            ),
            callbacks.BackupAndRestore(pathlib.Path(disk) / "backups", 2),
            Faults(at_steps(chance, kinds, acts, is_killed)),
        ]
    history = model.fit(
        batches(bad, disk is not None),
        epochs=EPOCHS,
        callbacks=used,
        shuffle=False,
        verbose=0,
    )
    result = {f"history/{k}": v for k, v in history.history.items()}
    np.savez(outcome, **result, **named(state_of(model)))


def at_steps(chance, kinds, acts, is_killed):
    """Returns what to do before which step of a life."""
    found = {}

    def note(step, act):
        found.setdefault(step, []).append(act)

    for begin, end in kinds:
        step = chance.randint(0, 5)
        note(step, acts[begin])
        if end is not None:
            # A backup is due, and a batch drawn, before it ends.
            note(step + chance.randint(3, 8), acts[end])
    if is_killed:
        # Within the next step, or within the next write but some.
        delay = chance.uniform(0, 2 * STEP_SECONDS)
        tear = functools.partial(die_within_write, chance.randint(1, 4))
        note(
            chance.randint(9, 14),
            chance.choice([threading.Timer(delay, die).start, tear]),
        )
    return found


def soak(scenario, seed, folder, disk):
    """Trains undisturbed, and disturbed until a run ends; returns the kills."""
    chance = random.Random(seed)
    bad = chance.sample(range(BATCHES), 2)
    in_child(train, scenario, bad, folder / "expected.npz")
    for life in range(KILLS + 1):
        # Drawn here: a child's draws are its own.
        faults = random.Random(chance.random())
        if in_child(
            train,
            scenario,
            bad,
            folder / "actual.npz",
            disk,
            faults,
            life < KILLS,
        ):
            return life
    raise SystemExit("the last run was killed")


def main(folder, disk, scenario, *seeds):
    for seed in seeds:
        place = pathlib.Path(folder) / seed
        place.mkdir()
        died = soak(scenario, int(seed), place, disk)
        Disk(disk).empty()
        print(died)


if __name__ == "__main__":
    main(*sys.argv[1:])
