"""Training that goes on after a kill as if there had been none."""

import os
import time
from typing import Any

import keras

from keras_tfopt import _compat
from keras_tfopt.checkpoint.generations import Generations
from keras_tfopt.checkpoint.writer import BackgroundWriter
from keras_tfopt.checkpoint.writer import wait_for_writers
from keras_tfopt.plan import check_positive_integer
from keras_tfopt.telemetry.records import Reading
from keras_tfopt.training.backup_peers import Alone
from keras_tfopt.training.backup_peers import BackupPeers
from keras_tfopt.training.backup_peers import peers_of
from keras_tfopt.training.backup_session import BackupSession
from keras_tfopt.training.interruption import SignalWatch
from keras_tfopt.training.interruption import TrainingInterrupted
from keras_tfopt.training.save_schedule import SaveSchedule

SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1")


class BackupAndRestore(keras.callbacks.Callback):
    """Backs training up and, started again, goes on exactly where it was.

    Takes the place of `keras.callbacks.BackupAndRestore`. Kill the process at
    any instant and start the same script again: weights, optimizer slots,
    metrics and history become those of the run that was never killed. A backup
    holds all of that, the seeds of layers and of `keras.random`, the generators
    of Python, NumPy and TensorFlow, the plan of the model and the batches that
    it gathers, the position in the data, and the state of the other callbacks.

    Steps inside of an epoch are not run again. How the position in the data is
    found depends on the data: iterators of `tf.data` are saved where TensorFlow
    can, arrays are shuffled again by the same seed, and batches of what comes
    from Python are drawn again and thrown away. The log `keras_tfopt` says
    which, and where the order may be another one. For data that is exact, call
    `keras.utils.set_random_seed` at the start of the script, and let `map` draw
    from stateless operations or seeds in the data. Arrays need no seed.

    A callback whose state is more than numbers, strings, arrays, and lists and
    dicts of them, defines `get_state()`, which returns such values, and
    `set_state(state)`. So does a `PyDataset` that shuffles by itself.

    Each backup is written under another name, verified by checksums when it is
    read, and renamed when the disk has all of it. What is torn is skipped. A
    full disk costs backups and never the training, nor the last good backup.
    The writing is done by a thread; on a CPU training waits for milliseconds,
    and values that it overwrites meanwhile take memory twice.

    A signal (`SIGTERM`, `SIGINT`, `SIGUSR1`) lets the step finish, makes a
    backup and ends `fit` with `keras_tfopt.TrainingInterrupted`, a `SystemExit`
    whose exit code is 128 and the number of the signal. One that comes while
    `fit` validates is obeyed when the next epoch begins, or when `fit` ends;
    the result is then in the last backup.

    Under `MultiWorkerMirroredStrategy` all workers name the same folder, on a
    file system that all see. The chief writes what is equal on all, each worker
    its position in the data, its generators, and its part of the metrics. A
    backup counts when the parts of all workers are whole. A signal to one
    worker stops all at the same step. When a worker is lost, the others end
    with `keras_tfopt.WorkerLost`, exit code 75, once the backup under
    way is written; the next start of all goes on from the last one that all
    have.

    Example:

    ```python
    import keras
    from keras_tfopt import callbacks

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    backup = callbacks.BackupAndRestore("backup", save_freq="30s")
    x, y = keras.ops.ones((16, 4)), keras.ops.ones((16, 1))
    model.fit(x, y, epochs=2, callbacks=[backup], verbose=0)
    ```

    Args:
        backup_dir: String or path. Folder for backups of this run alone; a
            path that `tf.io.gfile` knows will do. Several workers share it.
        save_freq: `"epoch"`, a number of batches, an interval such as `"30s"`,
            `"10m"` or `"1h"`, or `False` for backups only when a signal comes.
            Defaults to `"epoch"`.
        double_checkpoint: Boolean. Keras' name for `keep=2`. Defaults to
            `False`, which leaves it to `keep`.
        delete_checkpoint: Boolean. Whether to remove the backups when training
            is complete. A run that was stopped keeps them. Otherwise a last
            one holds the result, and the same script started again trains
            nothing. Defaults to `True`.
        keep: Integer. How many backups stay. Defaults to 2.
        asynchronous: Boolean. Whether a thread writes. Defaults to `True`.
        strict: Boolean. Whether to refuse data whose order after a restart may
            be another one. Defaults to `False`.
        signals: Sequence of names of signals to obey. Defaults to `SIGTERM`,
            `SIGINT` and `SIGUSR1`.

    Raises:
        ValueError: If an argument is none of these; in `fit`, if the backup is
            one of another model, optimizer or data, or if `strict` refuses.
    """

    def __init__(
        self,
        backup_dir: str | os.PathLike,
        save_freq: str | int = "epoch",
        double_checkpoint: bool = False,
        delete_checkpoint: bool = True,
        *,
        keep: int = 2,
        asynchronous: bool = True,
        strict: bool = False,
        signals: tuple[str, ...] = SIGNALS,
    ) -> None:
        super().__init__()
        if not isinstance(backup_dir, (str, os.PathLike)) or not str(
            backup_dir
        ):
            raise ValueError(
                "Invalid value for argument `backup_dir`. "
                f"Received: backup_dir={backup_dir!r}. Expected: the path of a "
                "folder."
            )
        check_positive_integer("keep", keep)
        # A string is a sequence of names of one letter.
        if any(name not in SIGNALS for name in signals):
            raise ValueError(
                "Invalid value for argument `signals`. "
                f"Received: signals={signals!r}. Expected: a sequence of names "
                f"among {', '.join(SIGNALS)}."
            )
        self.backup_dir = os.fspath(backup_dir)
        self.save_freq = save_freq
        self.delete_checkpoint = delete_checkpoint
        self.keep = max(keep or 1, 2 if double_checkpoint else 1)
        self.strict = strict
        self._schedule = SaveSchedule(save_freq)
        self._signals = SignalWatch(tuple(signals))
        self._generations = Generations(self.backup_dir, self.keep)
        self._writer = BackgroundWriter(asynchronous)
        self._peers: BackupPeers = Alone()
        self._session: Any = None
        self._ended_run: str | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Restores the newest sound backup, if there is one.

        Raises:
            ValueError: If it is one of another model, optimizer or data.
        """
        # One that an exception left behind may still be writing.
        wait_for_writers()
        self._peers = peers_of(_compat.strategy_of(self.model))
        self._generations = self._peers.generations(self.backup_dir, self.keep)
        self._session = session = BackupSession(
            self.model,
            self._generations,
            self._writer,
            self._schedule,
            self._signals,
            self.strict,
            self._peers,
            ignore=(BackupAndRestore, keras.callbacks.BackupAndRestore),
        )
        self._generations.clear_unfinished()
        session.prepare(self._find())
        session.add_last(_Last(self))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes which epoch begins."""
        self._session.set_epoch(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Does nothing; that it exists keeps Keras from using threads."""

    def metric_readings(self) -> list[Reading]:
        """Returns what the last complete backup cost, for telemetry."""
        times = None if self._session is None else self._session.times
        if times is None:
            return []
        return [
            Reading("backup_seconds", times.write_seconds),
            Reading("backup_stall_seconds", times.stall_seconds),
            Reading("backup_age_seconds", time.time() - times.saved_at),
        ]

    def _find(self) -> Any:
        """Returns the backup to go on from; none of a `fit` that ended here."""
        saved = self._peers.latest(self._generations)
        if saved is not None and saved.state["run"] == self._ended_run:
            self._session.clear()
            return None
        return saved

    def _end(self) -> None:
        session = self._session
        number = session.end()
        self._signals.remove()
        self._ended_run = session.run
        if number:
            # The process ends before anybody uses the result.
            if not session.is_stopped:
                session.save_result()
            self._peers.wait()
            raise TrainingInterrupted(number)
        if session.is_stopped:
            return
        if self.delete_checkpoint:
            session.clear()
        else:
            session.save_result()


class _Last(keras.callbacks.Callback):
    """Stands behind all other callbacks of a `fit`.

    Args:
        backup: `BackupAndRestore`.
    """

    def __init__(self, backup: BackupAndRestore) -> None:
        super().__init__()
        self._backup = backup

    def on_train_begin(self, logs: Any = None) -> None:
        """Restores a run with nothing left to train."""
        self._backup._session.begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Backs up a run that a callback stops inside of an epoch."""
        self._backup._session.end_step(logs)

    def on_train_end(self, logs: Any = None) -> None:
        """Removes the backups of a run that is complete."""
        self._backup._end()
