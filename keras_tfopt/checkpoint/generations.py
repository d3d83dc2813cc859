"""The backups of a folder, of which the newest sound one counts."""

import logging
from typing import Any

from keras_tfopt.checkpoint.generation import DamagedBackupError
from keras_tfopt.checkpoint.generation import Generation
from keras_tfopt.checkpoint.generation import read_generation
from keras_tfopt.checkpoint.generation import read_manifest
from keras_tfopt.checkpoint.generation import write_generation
from keras_tfopt.checkpoint.storage import STORAGE_ERRORS
from keras_tfopt.checkpoint.storage import storage_for

_logger = logging.getLogger("keras_tfopt")
_PREFIX = "generation-"
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

    def write(self, state: Any, arrays: dict[str, Any], run: str) -> str:
        """Writes a backup, then removes those that it makes superfluous.

        Args:
            state: Nest that `json` takes.
            arrays: Dict of NumPy arrays and tensors by name.
            run: String. Names the training run. Backups of other runs go.

        Returns:
            String. Name of the backup.
        """
        storage = self._storage
        storage.make_folder(self._directory)
        names = self._names(unfinished=True)
        last = max((_number(name) for name in names), default=0)
        name = f"{_PREFIX}{last + 1:08d}"
        folder = self._path(name + _UNFINISHED)
        try:
            storage.make_folder(folder)
            state = {"run": run, "content": state}
            write_generation(storage, folder, state, arrays)
            storage.publish(folder, self._path(name))
        except BaseException:
            self._remove(name + _UNFINISHED)
            raise
        self._prune(name, run)
        return name

    def latest(self, finite: bool = False) -> Generation | None:
        """Reads the newest backup that is whole, and says why others are not.

        Args:
            finite: Boolean. Whether to pass over backups that hold NaN or
                infinity. Defaults to `False`.

        Returns:
            `Generation`, or `None` if there is none.
        """
        for name in reversed(self._names()):
            try:
                found = read_generation(self._storage, self._path(name))
            except (DamagedBackupError, *STORAGE_ERRORS) as error:
                _logger.warning(
                    "Backup %s is skipped: %s.", self._path(name), error
                )
                continue
            if finite and not found.is_finite:
                _logger.warning(
                    "Backup %s is skipped: it holds NaN or infinity.",
                    self._path(name),
                )
                continue
            return found
        return None

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

    def _prune(self, newest: str, run: str) -> None:
        same_run = [
            name for name in self._names() if self._run_of(name) in (run, None)
        ]
        kept = {newest, *same_run[-self._keep :]}
        for name in self._names():
            if name not in kept:
                self._remove(name)

    def _run_of(self, name: str) -> str | None:
        try:
            manifest = read_manifest(self._storage, self._path(name))
        except (DamagedBackupError, *STORAGE_ERRORS):
            return None
        return manifest["state"]["run"]

    def _remove(self, name: str) -> None:
        try:
            self._storage.remove(self._path(name))
        except STORAGE_ERRORS as error:
            _logger.warning("Backup %s stays: %s.", self._path(name), error)

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"


def _number(name: str) -> int:
    """Returns the number in the name of a backup, or 0."""
    number = name.removeprefix(_PREFIX).removesuffix(_UNFINISHED)
    is_ours = name.startswith(_PREFIX) and number.isdigit()
    return int(number) if is_ours else 0
