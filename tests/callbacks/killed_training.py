"""A training script for a process of its own, which it kills many times.

Each run is a child that starts from nothing but the imported libraries. The
first one is left alone; the others share a folder for backups, and are killed
at random moments or while they write, until the last one ends by itself. Both
outcomes are left as files.
"""

import json
import os
import pathlib
import random
import signal
import sys
import threading
import time
import traceback

import keras
import numpy as np
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from keras_tfopt.checkpoint.storage import LocalStorage
from tests.builders import through_python
from tests.equivalence import state_of

EPOCHS = 4
ROWS = 62
STEP_SECONDS = 0.03


class RowIds(keras.callbacks.Callback):
    """Keeps the ids of the rows that were trained on, in their order."""

    def __init__(self):
        super().__init__()
        self.pending = []
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen += self.pending
        self.pending = []
        time.sleep(STEP_SECONDS)

    def get_state(self):
        return self.seen

    def set_state(self, state):
        self.seen = state


class IdColumn(keras.layers.Layer):
    """Takes the ids out of the first column of the inputs, and notes them."""

    def __init__(self, note):
        super().__init__()
        self.note = note

    def call(self, inputs, training=None):
        ids, rest = inputs[:, :1], inputs[:, 1:]
        if training and self.note is not None:
            kept = through_python(self.note, ids)
            rest = rest + 0.0 * tf.cast(kept, rest.dtype)
        return rest

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[1] - 1)


class Shortage(keras.layers.Layer):
    """Runs out of memory with more than two rows, when it is short."""

    def __init__(self):
        super().__init__()
        self.is_short = False

    def call(self, inputs, training=None):
        return through_python(self.fail, inputs) if training else inputs

    def fail(self, array):
        if self.is_short and len(array) > 2:
            raise MemoryError("no room")


class ShortageFrom(keras.callbacks.Callback):
    """Makes memory short from a batch of the first epoch on."""

    def __init__(self, layer, batch):
        super().__init__()
        self.layer = layer
        self.batch = batch
        self.epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        self.layer.is_short = self.epoch > 0 or batch >= self.batch


def rows():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, 5)).astype("float32")
    x[:, 0] = np.arange(ROWS)
    return x, x[:, 1:2] * x[:, 2:3]


def network(cls, note, layers=(), **settings):
    inputs = keras.Input((5,))
    hidden = IdColumn(note)(inputs)
    for layer in layers:
        hidden = layer(hidden)
    hidden = keras.layers.Dense(8, activation="relu")(hidden)
    hidden = keras.layers.BatchNormalization()(hidden)
    hidden = keras.layers.Dropout(0.3)(hidden)
    outputs = keras.layers.Dense(1, dtype="float32")(hidden)
    return cls(inputs, outputs, **settings)


def plain(note):
    """A pipeline that shuffles and augments, several steps in a call."""
    x, y = rows()
    seeds = tf.data.Dataset.random(seed=4).batch(2)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(20, seed=1)

    def augment(example, seed):
        features, target = example
        noise = tf.random.stateless_normal((5,), seed) * [0.0, 1, 1, 1, 1]
        return features + 0.1 * noise, target

    data = tf.data.Dataset.zip(data, seeds).map(augment).batch(4).prefetch(2)
    model = network(keras.Model, note)
    model.compile(
        keras.optimizers.Adam(0.02),
        "mse",
        metrics=["mae"],
        steps_per_execution=2,
    )
    return model, {"x": data, "shuffle": False}, []


def accumulating(note):
    """Half precision, micro-batches, and a shortage of memory on the way."""
    del note
    x, y = rows()
    keras.config.set_dtype_policy("mixed_float16")
    shortage = Shortage()
    model = network(AccumModel, None, [shortage], accumulation_steps=2)
    model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
    recovery = callbacks.OOMRecovery(grow_after=None)
    return (
        model,
        {"x": x, "y": y, "batch_size": 8},
        [
            recovery,
            ShortageFrom(shortage, 3),
        ],
    )


SCENARIOS = {"plain": plain, "accumulating": accumulating}


def train(scenario, folder, outcome, kill=None):
    """Trains once, and dies on the way if told to."""
    keras.utils.set_random_seed(3)
    ids = RowIds()

    def note(array):
        ids.pending += [int(value) for value in array[:, 0]]

    model, data, others = SCENARIOS[scenario](note)
    extra = [
        keras.callbacks.EarlyStopping(
            "val_loss", patience=3, restore_best_weights=True
        ),
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=0.1),
    ]
    if folder is not None:
        extra.insert(1, callbacks.BackupAndRestore(folder, save_freq=2))
    if kill is not None:
        extra.append(Killer(kill))
    x, y = rows()
    history = model.fit(
        **data,
        epochs=EPOCHS,
        validation_data=(x[:6], y[:6]),
        callbacks=[*others, *extra, ids],
        verbose=0,
    )
    result = {f"history/{k}": v for k, v in history.history.items()}
    np.savez(outcome, ids=ids.seen, **result, **named(state_of(model)))


def named(state):
    return {name.replace("/", "|"): value for name, value in state.items()}


class Killer(keras.callbacks.Callback):
    """Kills the process: seconds after the first step, or within a write.

    Args:
        moment: Float, seconds; or integer, the number of the write.
    """

    def __init__(self, moment):
        super().__init__()
        self.moment = moment
        self.is_armed = False

    def get_state(self):
        return None

    def set_state(self, state):
        """Dies by the clock of this process."""

    def on_train_batch_begin(self, batch, logs=None):
        if self.is_armed:
            return
        self.is_armed = True
        if isinstance(self.moment, float):
            timer = threading.Timer(self.moment, die)
            timer.daemon = True
            timer.start()
        else:
            die_within_write(self.moment)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_within_write(number):
    """Kills the process when half of a file is written."""
    write = LocalStorage.write
    count = 0

    def torn(self, path, chunks):
        nonlocal count
        count += 1
        if count < number:
            write(self, path, chunks)
            return
        data = b"".join(bytes(chunk) for chunk in chunks)
        with open(path, "wb") as file:
            file.write(data[: len(data) // 2])
        die()

    LocalStorage.write = torn


def in_child(function, *arguments):
    """Calls a function in a child and returns whether the child lived."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function(*arguments)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return False
    if status != 0:
        raise SystemExit("a run failed")
    return True


def main(scenario, folder, seed):
    folder = pathlib.Path(folder)
    backups = folder / "backups"
    in_child(train, scenario, None, folder / "expected.npz")
    moments = random.Random(int(seed))
    # Manifest and arrays are a file each: some die in one, some in the other.
    seconds = [moments.uniform(0.05, 0.8) for _ in range(4)]
    kills = [3, seconds[0], 4, seconds[1], seconds[2], 1, seconds[3]]
    died = 0
    unfinished = 0
    for kill in kills:
        if in_child(train, scenario, backups, folder / "actual.npz", kill):
            break
        died += 1
        unfinished += any(p.name.endswith(".tmp") for p in backups.iterdir())
    else:
        in_child(train, scenario, backups, folder / "actual.npz")
    print(json.dumps({"died": died, "unfinished": unfinished}))


if __name__ == "__main__":
    main(*sys.argv[1:])
