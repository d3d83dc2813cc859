"""The backups of a folder, of which the newest sound one counts."""

import logging
from typing import Any

from keras_tfopt.checkpoint.generation import PREFIX as _PREFIX
from keras_tfopt.checkpoint.generation import DamagedBackupError
from keras_tfopt.checkpoint.generation import Generation
from keras_tfopt.checkpoint.generation import number_of
from keras_tfopt.checkpoint.generation import read_generation
from keras_tfopt.checkpoint.generation import read_manifest
from keras_tfopt.checkpoint.generation import write_generation
from keras_tfopt.checkpoint.storage import STORAGE_ERRORS
from keras_tfopt.checkpoint.storage import storage_for

_logger = logging.getLogger("keras_tfopt")
_UNFINISHED = ".tmp"


class Generations:
    """Writes, reads and removes backups, and never the last good one.

    A backup is written into a folder of another name, which is renamed once
    everything is on the disk: a kill at any instant leaves whole backups only.

    Args:
        directory: String. Folder of the backups.
        keep: Integer. How many of a run stay. Defaults to 2.
    """

    def __init__(self, directory: str, keep: int = 2) -> None:
        self._storage = storage_for(directory)
        self._directory = directory.rstrip("/") or "/"
        self._keep = keep

    def write(
        self,
        state: Any,
        arrays: dict[str, Any],
        run: str,
        number: int | None = None,
        complete: int = 0,
    ) -> str:
        """Writes a backup, then removes those that it makes superfluous.

        Args:
            state: Nest that `json` takes.
            arrays: Dict of NumPy arrays and tensors by name.
            run: String. Names the training run. Backups of other runs go.
            number: Integer or `None`. Number of the backup. Defaults to the
                next one.
            complete: Integer. Number of a backup that stays in any case: the
                last one that all workers have. Defaults to none.

        Returns:
            String. Name of the backup.
        """
        storage = self._storage
        storage.make_folder(self._directory)
        name = f"{_PREFIX}{number or self.last_number() + 1:08d}"
        folder = self._path(name + _UNFINISHED)
        try:
            storage.make_folder(folder)
            state = {"run": run, "content": state}
            write_generation(storage, folder, state, arrays)
            storage.publish(folder, self._path(name))
        except BaseException:
            self._remove(name + _UNFINISHED)
            raise
        self._prune(name, run, complete)
        return name

    def last_number(self) -> int:
        """Returns the number of the newest backup, finished or not, or 0."""
        names = self._names(unfinished=True)
        return max((_number(name) for name in names), default=0)

    def latest(
        self, finite: bool = False, below: int | None = None
    ) -> Generation | None:
        """Reads the newest backup that is whole, and says why others are not.

        Args:
            finite: Boolean. Whether to pass over backups that hold NaN or
                infinity. Defaults to `False`.
            below: Integer or `None`. A number that it must not reach. Defaults
                to none.

        Returns:
            `Generation`, or `None` if there is none.
        """
        for name in reversed(self._names()):
            if below is not None and _number(name) >= below:
                continue
            found = self._read(name)
            if found is None:
                continue
            if finite and not found.is_finite:
                _logger.warning(
                    "Backup %s is skipped: it holds NaN or infinity.",
                    self._path(name),
                )
                continue
            return found
        return None

    def read(self, number: int) -> Generation | None:
        """Reads a backup; says why not, and returns `None`, if it cannot.

        Args:
            number: Integer.
        """
        return self._read(f"{_PREFIX}{number:08d}")

    def clear(self) -> None:
        """Removes all backups, finished or not, and nothing else."""
        for name in self._names(unfinished=True):
            self._remove(name)
        try:
            self._storage.remove_empty(self._directory)
        except STORAGE_ERRORS as error:
            _logger.warning("%s stays: %s.", self._directory, error)

    def clear_unfinished(self) -> None:
        """Removes what a killed process left half written."""
        for name in self._names(unfinished=True):
            if name.endswith(_UNFINISHED):
                self._remove(name)

    def _names(self, unfinished: bool = False) -> list[str]:
        """Returns the names of backups, oldest first."""
        names = [
            name
            for name in self._storage.list_folder(self._directory)
            if _number(name) and (unfinished or not name.endswith(_UNFINISHED))
        ]
        return sorted(names, key=_number)

    def _prune(self, newest: str, run: str, complete: int) -> None:
        same_run = [
            name for name in self._names() if self._run_of(name) in (run, None)
        ]
        kept = {newest, *same_run[-self._keep :]}
        for name in self._names():
            if name not in kept and _number(name) != complete:
                self._remove(name)

    def _run_of(self, name: str) -> str | None:
        try:
            manifest = read_manifest(self._storage, self._path(name))
        except (DamagedBackupError, *STORAGE_ERRORS):
            return None
        return manifest["state"]["run"]

    def _read(self, name: str) -> Generation | None:
        path = self._path(name)
        try:
            return read_generation(self._storage, path)
        except (DamagedBackupError, *STORAGE_ERRORS) as error:
            _logger.warning("Backup %s is skipped: %s.", path, error)
            return None

    def _remove(self, name: str) -> None:
        try:
            self._storage.remove(self._path(name))
        except STORAGE_ERRORS as error:
            _logger.warning("Backup %s stays: %s.", self._path(name), error)

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"


def _number(name: str) -> int:
    """Returns the number in the name of a backup, or 0."""
    return number_of(name.removesuffix(_UNFINISHED))
