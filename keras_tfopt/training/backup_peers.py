"""Who makes a backup together, and what they agree on."""

from collections.abc import Iterable
import dataclasses
import time
from typing import Any
from typing import Protocol
import zlib

import tensorflow as tf

from keras_tfopt.checkpoint.generation import VARIABLES
from keras_tfopt.checkpoint.generation import Generation
from keras_tfopt.checkpoint.generations import Generations
from keras_tfopt.distribution.agreement import Agreement
from keras_tfopt.distribution.agreement import agreement_of
from keras_tfopt.distribution.replicas import spans_workers


@dataclasses.dataclass(frozen=True)
class Situation:
    """What a worker knows between two steps.

    Attributes:
        signal: Integer. Number of a signal that it received, or 0.
        is_due: Boolean. Whether its schedule asks for a backup.
        is_busy: Boolean. Whether it still writes the last one.
        written: Integer. Number of the last backup that it has written.
    """

    signal: int
    is_due: bool
    is_busy: bool
    written: int


class BackupPeers(Protocol):
    """The processes of a training, the chief first.

    Attributes:
        worker: Integer. Place of this process among them.
        workers: Integer. How many they are.
    """

    worker: int
    workers: int

    def generations(self, directory: str, keep: int) -> Generations:
        """Returns the backups of this process in a folder.

        Raises:
            ValueError: If the folder is not the same for all.
        """

    def decide(self, situation: Situation) -> Situation:
        """Returns the situation of all, of which each is true of one."""

    def share(self, numbers: list[int]) -> list[int]:
        """Returns the numbers of the chief."""

    def latest(
        self, generations: Generations, finite: bool = False
    ) -> Generation | None:
        """Reads the newest backup that all have whole."""

    def next_number(self, generations: Generations) -> int:
        """Returns a number for the next backup, above those of all."""

    def distribute(self, dataset: tf.data.Dataset) -> Iterable[Any]:
        """Returns a dataset of whole batches as `fit` iterates over it."""

    def wait(self) -> None:
        """Returns when all have called it."""


class Alone:
    """One process, which asks nobody."""

    worker = 0
    workers = 1

    def generations(self, directory: str, keep: int) -> Generations:
        """Returns the backups in a folder."""
        return Generations(directory, keep)

    def decide(self, situation: Situation) -> Situation:
        """Returns the situation, without a backup that others may need."""
        return dataclasses.replace(situation, written=0)

    def share(self, numbers: list[int]) -> list[int]:
        """Returns the numbers."""
        return numbers

    def latest(
        self, generations: Generations, finite: bool = False
    ) -> Generation | None:
        """Reads the newest backup that is whole."""
        return generations.latest(finite)

    def next_number(self, generations: Generations) -> int:
        """Returns a number above those of all backups."""
        return generations.last_number() + 1

    def distribute(self, dataset: tf.data.Dataset) -> Iterable[Any]:
        """Returns the dataset."""
        return dataset

    def wait(self) -> None:
        """Returns at once."""


class Together:
    """The workers of a strategy, which write a backup each has a part of.

    The chief's part holds what is equal on all. All parts lie in one folder,
    which all workers must see, and a backup counts only when it is whole.

    Args:
        strategy: `tf.distribute.MultiWorkerMirroredStrategy`.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self._agreement: Agreement = agreement_of(strategy)
        self.worker = self._agreement.replicas.worker
        self.workers = self._agreement.replicas.workers
        self._chief: Generations | None = None

    def generations(self, directory: str, keep: int) -> Generations:
        """Returns the backups of this worker in a folder.

        Raises:
            ValueError: If the workers do not see the same folder.
        """
        # A worker may be one backup ahead of another.
        keep = max(keep, 2)
        self._chief = Generations(directory, keep)
        self._check_folder(directory)
        if self.worker == 0:
            return self._chief
        return Generations(
            f"{directory.rstrip('/')}/worker-{self.worker}", keep
        )

    def decide(self, situation: Situation) -> Situation:
        """Returns the first signal, the chief's schedule, and the slowest."""
        told = self._agreement.gather(
            [int(value) for value in dataclasses.astuple(situation)]
        )
        signals, dues, busies, written = zip(*told, strict=True)
        return Situation(
            next((number for number in signals if number), 0),
            bool(dues[0]),
            any(busies),
            min(written),
        )

    def share(self, numbers: list[int]) -> list[int]:
        """Returns the numbers of the chief."""
        return self._agreement.gather(numbers)[0]

    def latest(
        self, generations: Generations, finite: bool = False
    ) -> Generation | None:
        """Reads the newest backup whose parts are all whole."""
        below = None
        while True:
            own, shared = self._read(generations, finite, below)
            told = self._agreement.gather(_identity(own, shared))
            numbers = [number for number, _ in told]
            if own is None or shared is None or not min(numbers):
                return None
            if all(one == told[0] for one in told):
                return _merged(own, shared)
            # The newest that the slowest has; not that one if it is foreign.
            is_foreign = len(set(numbers)) == 1
            below = min(numbers) + (0 if is_foreign else 1)

    def next_number(self, generations: Generations) -> int:
        """Returns a number above those of all backups of all workers."""
        told = self._agreement.gather([generations.last_number()])
        return max(number for (number,) in told) + 1

    def distribute(self, dataset: tf.data.Dataset) -> Iterable[Any]:
        """Returns the dataset, of which each worker has its part."""
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.DATA
        )
        return self._strategy.experimental_distribute_dataset(
            dataset.with_options(options)
        )

    def wait(self) -> None:
        """Returns when all workers have called it."""
        self._agreement.gather([0])

    def _read(
        self, generations: Generations, finite: bool, below: int | None
    ) -> tuple[Generation | None, Generation | None]:
        """Reads the own part of a backup and the chief's."""
        own = generations.latest(finite, below)
        while own is not None:
            shared: Generation | None = own
            if self.worker and self._chief is not None:
                shared = self._chief.read(own.number)
            if shared is not None and _run_of(shared) == _run_of(own):
                if shared.is_finite or not finite:
                    return own, shared
            own = generations.latest(finite, own.number)
        return None, None

    def _check_folder(self, directory: str) -> None:
        (token,) = self.share([time.time_ns()])
        path = f"{directory.rstrip('/')}/workers-{token}"
        if self.worker == 0:
            tf.io.gfile.makedirs(path)
        self.wait()
        is_seen = tf.io.gfile.isdir(path)
        told = self._agreement.gather([int(is_seen)])
        if self.worker == 0:
            tf.io.gfile.rmtree(path)
        blind = [str(place) for place, (seen,) in enumerate(told) if not seen]
        if blind:
            raise ValueError(
                "Workers back up into one folder. Received: "
                f"backup_dir={directory!r}, in which worker {', '.join(blind)} "
                "does not see what the chief has written. Expected: a path on "
                "a file system that all workers share, or in an object store."
            )


def peers_of(strategy: tf.distribute.Strategy | None) -> BackupPeers:
    """Returns who makes backups of a model under a strategy."""
    return Together(strategy) if spans_workers(strategy) else Alone()


def _identity(own: Generation | None, shared: Generation | None) -> list[int]:
    if own is None or shared is None:
        return [0, 0]
    return [own.number, zlib.crc32(_run_of(own).encode())]


def _run_of(generation: Generation) -> str:
    return generation.state["run"]


def _merged(own: Generation, shared: Generation) -> Generation:
    """Returns the own part with the variables that are the chief's to write."""
    variables = {
        name: array
        for name, array in shared.arrays.items()
        if name.startswith(VARIABLES)
    }
    return dataclasses.replace(own, arrays={**variables, **own.arrays})
