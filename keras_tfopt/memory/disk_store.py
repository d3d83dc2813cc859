"""Values of variables in a file, while they are away from the device."""

from collections.abc import Sequence
import os
import tempfile
from typing import IO
import zlib

import numpy as np


class DiskStore:
    """Keeps arrays in a file that has no name and goes with the process.

    The file is written in full, or not at all, before anyone lets go of the
    values. They are verified when they come back.

    Args:
        directory: String. Folder on the disk to use.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._parts: list[tuple[np.dtype, tuple[int, ...], int]] = []
        self._staged: list[np.ndarray] | None = None

    def save(self, arrays: Sequence[np.ndarray]) -> None:
        """Keeps arrays.

        Raises:
            OSError: If the disk is full, or does not take them.
        """
        total = sum(array.nbytes for array in arrays)
        file = tempfile.TemporaryFile(dir=self._directory, buffering=0)
        try:
            if total:
                # All of the room, before anything is written.
                os.posix_fallocate(file.fileno(), 0, total)
            parts = []
            for array in arrays:
                data = _as_bytes(array)
                _write_all(file, data)
                parts.append((array.dtype, array.shape, zlib.crc32(data.data)))
        except OSError as error:
            file.close()
            raise OSError(
                error.errno,
                f"Variables could not be moved to '{self._directory}', and "
                f"stay on the device: {error.strerror}. Expected: room for "
                f"{total} bytes. Free some, or use another directory or "
                "tier='host'.",
            ) from error
        self._file, self._parts = file, parts

    def stage(self) -> None:
        """Reads the arrays into the memory of the host, for `load`.

        Raises:
            OSError: If the file does not hold what was written.
        """
        if self._staged is None:
            self._staged = self._read()

    def load(self) -> list[np.ndarray]:
        """Returns the arrays.

        Raises:
            OSError: If the file does not hold what was written.
        """
        return self._read() if self._staged is None else self._staged

    def discard(self) -> None:
        """Removes the file."""
        if self._file is not None:
            self._file.close()
        self._file, self._parts, self._staged = None, [], None

    def _read(self) -> list[np.ndarray]:
        if self._file is None:
            return []
        self._file.seek(0)
        arrays = []
        for dtype, shape, checksum in self._parts:
            count = int(np.prod(shape)) * dtype.itemsize
            data = np.fromfile(self._file, np.uint8, count)
            if zlib.crc32(data.data) != checksum:
                raise OSError(
                    f"A file in '{self._directory}' does not hold what was "
                    f"written to it. Received: other bytes for {dtype}"
                    f"{list(shape)}. Expected: nothing else writes there. "
                    "Restore the training from a backup."
                )
            arrays.append(data.view(dtype).reshape(shape))
        return arrays


def _as_bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _write_all(file: IO[bytes], data: np.ndarray) -> None:
    """Writes bytes, which one call may not take all of."""
    view = data.data
    while view:
        view = view[file.write(view) :]
