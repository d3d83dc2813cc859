"""The backups of one `fit`: when they are made, and the way back."""

import dataclasses
import functools
import logging
import time
from typing import Any
import uuid

import keras
import numpy as np

from keras_tfopt import _compat_fit
from keras_tfopt.checkpoint.encoding import decode
from keras_tfopt.checkpoint.encoding import encode
from keras_tfopt.checkpoint.generation import Generation
from keras_tfopt.checkpoint.generations import Generations
from keras_tfopt.checkpoint.writer import BackgroundWriter
from keras_tfopt.data.position import DataPosition
from keras_tfopt.training.backup_peers import BackupPeers
from keras_tfopt.training.backup_peers import Situation
from keras_tfopt.training.interruption import SignalWatch
from keras_tfopt.training.interruption import TrainingInterrupted
from keras_tfopt.training.run_state import RunState
from keras_tfopt.training.save_schedule import SaveSchedule
from keras_tfopt.training.step_boundaries import watch_boundaries

_logger = logging.getLogger("keras_tfopt")


@dataclasses.dataclass(frozen=True)
class BackupTimes:
    """What the last complete backup cost.

    Attributes:
        write_seconds: Float. Time that writing took, mostly in a thread.
        stall_seconds: Float. Time that training stood still for it.
        saved_at: Float. When its state was, in seconds since the epoch of the
            clock.
    """

    write_seconds: float
    stall_seconds: float
    saved_at: float


class BackupSession:
    """Backs one `fit` up and brings it back.

    A backup is made between two steps, when all callbacks have seen the last
    one, and holds all that the next step depends on.

    Args:
        model: The compiled model that is trained.
        generations: `Generations` on disk.
        writer: `BackgroundWriter`.
        schedule: `SaveSchedule`.
        signals: `SignalWatch`.
        strict: Boolean. Whether to refuse data that cannot be restored exactly.
        peers: `BackupPeers` who do the same at the same time.
        ignore: Classes of callbacks whose state is not the run's.

    Attributes:
        run: String. Names the run; that of the backup once one is restored.
        is_stopped: Boolean. Whether `fit` was stopped before its last step.
        times: `BackupTimes` of the last complete backup, or `None`.
    """

    def __init__(
        self,
        model: keras.Model,
        generations: Generations,
        writer: BackgroundWriter,
        schedule: SaveSchedule,
        signals: SignalWatch,
        strict: bool,
        peers: BackupPeers,
        ignore: tuple[type, ...],
    ) -> None:
        fit = _compat_fit.fit_locals()
        self._model = model
        self._generations = generations
        self._writer = writer
        self._schedule = schedule
        self._signals = signals
        self._epoch_iterator = fit["epoch_iterator"]
        self._callbacks = fit["callbacks"]
        self._state = RunState(
            model,
            [c for c in self._callbacks.callbacks if not isinstance(c, ignore)],
            _compat_fit.dataset_of(self._epoch_iterator).element_spec,
            peers,
        )
        self._peers = peers
        self._position = DataPosition(
            self._epoch_iterator, strict, peers.share, peers.distribute
        )
        self._number = peers.next_number(generations)
        self._written = self._complete = 0
        self._saved: Generation | None = None
        self._iterator: Any = None
        self._epoch = self._step = 0
        self._is_probed = False
        self._is_complete = False
        self.run = _name_run(peers)
        self.is_stopped = False
        self.times: BackupTimes | None = None
        watch_boundaries(self._epoch_iterator, self)

    def prepare(self, saved: Generation | None) -> None:
        """Checks the model and sets the first epoch, before `fit` begins.

        Args:
            saved: `Generation` to come back to, or `None` to start anew.

        Raises:
            ValueError: If the backup is one of another model or other data.
        """
        self._schedule.restart()
        self._signals.install(self._epoch_iterator)
        if saved is None:
            return
        content = saved.state["content"]
        self._check_data(content, decode(content["data"], saved.arrays))
        self._state.check(content["run"])
        _compat_fit.set_initial_epoch(self._model, content["epoch"])
        self._saved = saved
        self.run = saved.state["run"]
        _logger.info(
            "Training goes on from %s: epoch %d, step %d.",
            saved.name,
            content["epoch"],
            content["step"],
        )

    def add_last(self, callback: keras.callbacks.Callback) -> None:
        """Puts a callback behind all others of this `fit`."""
        others = self._callbacks.callbacks
        for other in [o for o in others if type(o) is type(callback)]:
            # The list may be the user's, and come from a `fit` that failed.
            others.remove(other)
        callback.set_model(self._model)
        callback.set_params(self._callbacks.params)
        others.append(callback)

    def begin(self) -> None:
        """Restores a run with nothing left to train, when all have begun."""
        if self._saved is None:
            return
        if self._saved.state["content"]["epoch"] >= self._epochs:
            self._state.restore(
                self._saved, self._saved.state["content"]["run"]
            )
            self._saved = None
            self._is_complete = True

    def set_epoch(self, epoch: int) -> None:
        """Notes which epoch begins."""
        # Keras would start the next `fit` there, too.
        _compat_fit.set_initial_epoch(self._model, None)
        self._epoch, self._step = epoch, 0
        self._schedule.begin_epoch()

    def begin_epoch(self) -> int:
        """Prepares the data of an epoch; returns its first step."""
        if self._saved is None:
            self._position.begin_epoch(None)
            return 0
        content = self._saved.state["content"]
        self._position.begin_epoch(decode(content["data"], self._saved.arrays))
        return content["step"]

    def resume(self, iterator: Any) -> None:
        """Restores a run before the first step of its first epoch."""
        self._iterator = iterator
        saved, self._saved = self._saved, None
        if saved is not None:
            content = saved.state["content"]
            state = saved.arrays.get("iterator")
            self._position.seek(
                iterator,
                decode(content["data"], saved.arrays),
                None if state is None else state.tobytes(),
            )
            self._state.restore(saved, content["run"])
            self._schedule.restart()
        elif not self._is_probed:
            # A run begins; there is nothing in it yet.
            self._schedule.restart()
        if not self._is_probed:
            self._is_probed = True
            self._position.probe(iterator)

    def before_step(self, step: int, iterator: Any) -> None:
        """Makes a backup if one is due, or if a signal came."""
        self._iterator, self._step = iterator, step
        now = self._decide()
        if now.signal:
            self._interrupt(now.signal)
        if now.is_due and not now.is_busy:
            self._save(self._epoch, step)

    def after_step(self, steps: int) -> None:
        """Counts the batches of a step."""
        self._position.advance(steps)
        self._schedule.advance(steps)

    def end_step(self, logs: dict[str, Any] | None) -> None:
        """Makes a backup of a run that is stopped inside of an epoch.

        Called when all callbacks have seen the step.
        """
        steps = self._epoch_iterator.steps_per_execution
        after = self._step + steps
        is_last = after >= (self._epoch_iterator.num_batches or np.inf)
        if not self._model.stop_training or is_last:
            return
        self.is_stopped = True
        if np.all(np.isfinite(list((logs or {}).values()))):
            self.after_step(steps)
            self._writer.wait()
            self._save(self._epoch, after)

    def end(self) -> int:
        """Notes how `fit` ended, once all backups are on the disk.

        Returns:
            Integer. Number of a signal that came meanwhile, or 0.
        """
        is_short = self._epoch + 1 < self._epochs
        self.is_stopped |= self._model.stop_training and is_short
        self._writer.wait()
        return self._decide().signal

    def save_result(self) -> None:
        """Makes a backup of a run that is complete, unless it is one."""
        if self._is_complete:
            return
        self._save(self._epochs, 0)
        self._writer.wait()

    def clear(self) -> None:
        """Removes all backups, of all workers."""
        if self._peers.worker:
            self._generations.clear()
        # The chief's folder holds those of the others.
        self._peers.wait()
        if not self._peers.worker:
            self._generations.clear()

    def _decide(self) -> Situation:
        now = self._peers.decide(
            Situation(
                self._signals.pending or 0,
                self._schedule.is_due,
                self._writer.is_busy,
                self._written,
            )
        )
        self._complete = now.written
        return now

    @property
    def _epochs(self) -> int:
        return self._callbacks.params["epochs"]

    def _save(self, epoch: int, step: int) -> None:
        stall = _Stall()
        run, arrays = self._state.capture()
        position, iterator_state = self._position.capture(self._iterator)
        if iterator_state is not None:
            arrays["iterator"] = np.frombuffer(iterator_state, np.uint8)
        content = {
            "epoch": epoch,
            "step": step,
            "steps_per_execution": self._epoch_iterator.steps_per_execution,
            "workers": self._peers.workers,
            "run": run,
            "data": encode(position, arrays, "data"),
        }
        number, self._number = self._number, self._number + 1
        self._writer.submit(
            functools.partial(self._write, content, arrays, stall, number)
        )
        stall.end()
        self._schedule.restart()

    def _write(
        self,
        content: dict[str, Any],
        arrays: dict[str, Any],
        stall: "_Stall",
        number: int,
    ) -> None:
        start = time.perf_counter()
        self._generations.write(
            content, arrays, self.run, number, self._complete
        )
        self._written = number
        seconds = time.perf_counter() - start
        self.times = BackupTimes(seconds, stall.seconds, stall.began_at)

    def _interrupt(self, number: int) -> None:
        self._writer.wait()
        self._save(self._epoch, self._step)
        self._writer.wait()
        # Who ends first takes the others with it.
        self._peers.wait()
        self._signals.remove()
        _logger.warning(
            "Training is interrupted by signal %d at epoch %d, step %d.",
            number,
            self._epoch,
            self._step,
        )
        raise TrainingInterrupted(number)

    def _check_data(
        self, content: dict[str, Any], position: dict[str, Any]
    ) -> None:
        workers = content.get("workers", 1)
        if workers != self._peers.workers:
            raise ValueError(
                "The position in the data is that of each worker. Received: a "
                f"backup of {workers} workers for {self._peers.workers}. "
                "Expected: as many workers as before, or another `backup_dir`."
            )
        steps = self._epoch_iterator.steps_per_execution
        if content["step"] % steps:
            raise ValueError(
                "A backup lies between two steps of an execution. Received: "
                f"step {content['step']} of an epoch, with "
                f"steps_per_execution={steps}. Expected: a number that divides "
                f"it, such as the {content['steps_per_execution']} of the "
                "backup."
            )
        before = position["num_batches"]
        now = self._epoch_iterator.num_batches
        if before and now and before != now and content["step"]:
            raise ValueError(
                "The backup is one of a run with other data. Received: "
                f"{now} batches in an epoch; the backup has {before}. "
                "Expected: the same data and batch size, or another "
                "`backup_dir`."
            )


def _name_run(peers: BackupPeers) -> str:
    """Returns a name that no other run has, and all workers give it."""
    digits = uuid.uuid4().hex
    parts = [int(digits[start : start + 8], 16) for start in range(0, 32, 8)]
    return "".join(f"{part:08x}" for part in peers.share(parts))


class _Stall:
    """How long training stands still, also while it still does."""

    def __init__(self) -> None:
        self.began_at = time.time()
        self._start = time.perf_counter()
        self._seconds: float | None = None

    def end(self) -> None:
        """Lets training go on."""
        self._seconds = time.perf_counter() - self._start

    @property
    def seconds(self) -> float:
        """Time so far."""
        if self._seconds is not None:
            return self._seconds
        return time.perf_counter() - self._start
