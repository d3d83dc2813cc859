"""The training that everything happens to, for processes of its own."""

import json
import logging
import os
import pathlib
import signal
import sys
from typing import Any

import keras
import numpy as np
import rich.console
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from keras_tfopt.benchmark import progress
from keras_tfopt.benchmark import text
from keras_tfopt.benchmark.processes import answer
from keras_tfopt.memory.allocator import read_allocator_stats
from keras_tfopt.memory.allocator import reset_allocator_peak
from keras_tfopt.memory.limit import default_device
from keras_tfopt.memory.limit import limit_gpus

BATCH_SIZE = 64
_MIB = 2**20


class KillWithin(keras.callbacks.Callback):
    """Kills its process with `SIGKILL`, in the middle of the second epoch.

    Args:
        batch: Integer. Batch of the epoch to die behind.
    """

    def __init__(self, batch: int) -> None:
        super().__init__()
        self._batch = batch
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Dies, if it is time."""
        if self._epoch == 1 and batch == self._batch:
            os.kill(os.getpid(), signal.SIGKILL)


def _data(batches: int) -> tf.data.Dataset:
    texts, following = text.load_sources(batches * BATCH_SIZE)
    data = tf.data.Dataset.from_tensor_slices((texts, following))
    return data.shuffle(1000, seed=1).batch(BATCH_SIZE).prefetch(2)


def _fit(
    name: str,
    model: keras.Model,
    folder: pathlib.Path,
    epochs: int,
    batches: int,
    added: list[keras.callbacks.Callback],
) -> list[float]:
    """Trains, keeps the weights under a name, and returns the losses."""
    console = rich.console.Console(file=sys.stderr)
    with progress.EpochProgress(name, epochs, console) as bar:
        history = model.fit(
            _data(batches),
            epochs=epochs,
            shuffle=False,
            verbose=0,
            callbacks=[bar, *added],
        ).history
    weights = model.get_weights()
    np.savez(
        folder / f"{name}.npz",
        **{str(index): weight for index, weight in enumerate(weights)},
    )
    return history["loss"]


def _train_undisturbed(
    folder: pathlib.Path, epochs: int, batches: int, seed: int
) -> None:
    """Trains in the halves that memory will allow, and answers the peak."""
    keras.utils.set_random_seed(seed)
    device = default_device()
    before = reset_allocator_peak(device)
    model = text.build_transformer(AccumModel, microbatch_size=BATCH_SIZE // 2)
    losses = _fit("undisturbed", model, folder, epochs, batches, [])
    after = read_allocator_stats(device)
    peak = None
    if before is not None and after is not None:
        peak = after.peak_bytes - before.current_bytes
    answer({"losses": losses, "peak_bytes": peak})


def _train_disturbed(
    folder: pathlib.Path,
    epochs: int,
    batches: int,
    seed: int,
    limit_mib: int,
    tries_stock: int,
) -> None:
    """Trains where memory is short, XLA refuses, and a kill comes."""
    limit_gpus(limit_mib * _MIB)
    _show_log()
    restarts = int(os.environ["KERAS_TFOPT_RESTARTS"])
    told = folder / "stock_error"
    if tries_stock and restarts == 0:
        told.write_text(_stock_error())
    keras.utils.set_random_seed(seed)
    model = text.build_transformer()
    recovery = callbacks.OOMRecovery(grow_after=None)
    xla = callbacks.XLACompilation()
    added = [
        recovery,
        xla,
        callbacks.BackupAndRestore(folder / "backups", save_freq=2),
        callbacks.TensorBoardDashboard(folder / "tensorboard"),
        callbacks.PrometheusExporter(
            port=None, textfile=folder / "training.prom", interval_seconds=1
        ),
        callbacks.JSONLinesLogger(folder / "run.jsonl"),
        callbacks.TrainingSummary(verbose=1),
    ]
    if restarts == 0:
        added.append(KillWithin(batches // 2))
    losses = _fit("disturbed", model, folder, epochs, batches, added)
    texts, following = text.load_sources(batches * BATCH_SIZE)
    result = {
        "restarts": restarts,
        "stock_error": told.read_text() if tries_stock else None,
        "changes": [event.reason for event in recovery.plan_events],
        "losses": losses,
        "bits_without_context": text.bits_without_context(following),
    }
    (folder / "result.json").write_text(json.dumps(result))


def _show_log() -> None:
    """Shows warnings, and from where a training goes on."""
    logging.basicConfig(format="%(message)s")
    logger = logging.getLogger("keras_tfopt")
    logger.setLevel(logging.INFO)
    logger.addFilter(
        lambda record: (
            record.levelno > logging.INFO or "goes on" in record.getMessage()
        )
    )


def _stock_error() -> str:
    """Returns what stock Keras makes of one batch."""
    try:
        text.build_transformer().fit(_data(1), shuffle=False, verbose=0)
    except tf.errors.ResourceExhaustedError as error:
        return type(error).__name__
    return ""


if __name__ == "__main__":
    _place = pathlib.Path(sys.argv[2])
    _numbers = [int(argument) for argument in sys.argv[3:]]
    if sys.argv[1] == "undisturbed":
        _train_undisturbed(_place, *_numbers)
    else:
        _train_disturbed(_place, *_numbers)
