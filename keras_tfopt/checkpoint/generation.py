"""One backup on disk: arrays in one file, all else in a manifest."""

from collections.abc import Iterator
import dataclasses
import json
from typing import Any
import zlib

import numpy as np
import tensorflow as tf

from keras_tfopt.checkpoint.encoding import dtype_of
from keras_tfopt.checkpoint.storage import Storage

MANIFEST = "manifest.json"
# Start of the names of backups, before their number.
PREFIX = "generation-"
# Start of the names of the arrays that must be finite in a sound model.
VARIABLES = "variables/"
_ARRAYS = "arrays.bin"
_FORMAT = "keras_tfopt backup 1"
_CHUNK = 16 * 2**20


class DamagedBackupError(ValueError):
    """A backup is not what its writer finished."""


@dataclasses.dataclass(frozen=True)
class Generation:
    """A backup that was read and verified.

    Attributes:
        name: String. Name of its folder.
        state: Nest, as `json` reads it.
        arrays: Dict of NumPy arrays by name, which cannot be written to.
        is_finite: Boolean. Whether no variable holds NaN or infinity.
    """

    name: str
    state: Any
    arrays: dict[str, np.ndarray]
    is_finite: bool

    @property
    def number(self) -> int:
        """The number in its name."""
        return number_of(self.name)


def number_of(name: str) -> int:
    """Returns the number in the name of a backup, or 0."""
    number = name.removeprefix(PREFIX)
    return int(number) if name.startswith(PREFIX) and number.isdigit() else 0


def write_generation(
    storage: Storage, folder: str, state: Any, arrays: dict[str, Any]
) -> None:
    """Writes a backup into a folder; the manifest, which vouches, comes last.

    Args:
        storage: `Storage` of the folder.
        folder: String.
        state: Nest that `json` takes.
        arrays: Dict of NumPy arrays and tensors by name.
    """
    entries: list[dict[str, Any]] = []
    chunks = _array_chunks(arrays, entries)
    storage.write(f"{folder}/{_ARRAYS}", chunks)
    manifest = {
        "format": _FORMAT,
        "state": state,
        "arrays": entries,
        "finite": all(entry["finite"] for entry in entries),
    }
    text = json.dumps(manifest).encode()
    storage.write(f"{folder}/{MANIFEST}", [b"%08x\n" % zlib.crc32(text), text])


def read_manifest(storage: Storage, folder: str) -> dict[str, Any]:
    """Reads what a backup says of itself.

    Raises:
        DamagedBackupError: If it is torn or was not written by this package.
    """
    if MANIFEST not in storage.list_folder(folder):
        raise DamagedBackupError(f"it has no {MANIFEST}: it was not finished")
    with storage.open(f"{folder}/{MANIFEST}") as file:
        checksum, _, text = file.read().partition(b"\n")
    if checksum != b"%08x" % zlib.crc32(text):
        raise DamagedBackupError(f"the checksum of {MANIFEST} is wrong")
    manifest = json.loads(text)
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise DamagedBackupError(f"its format is not {_FORMAT!r}")
    return manifest


def read_generation(storage: Storage, folder: str) -> Generation:
    """Reads a backup and verifies every byte of it.

    Args:
        storage: `Storage` of the folder.
        folder: String.

    Returns:
        `Generation`.

    Raises:
        DamagedBackupError: Says what is wrong with it.
    """
    manifest = read_manifest(storage, folder)
    entries = manifest["arrays"]
    path = f"{folder}/{_ARRAYS}"
    expected = sum(entry["bytes"] for entry in entries)
    size = storage.size(path)
    if size != expected:
        raise DamagedBackupError(
            f"{_ARRAYS} has {size} bytes, {expected} were written"
        )
    arrays = {}
    with storage.open(path) as file:
        for entry in entries:
            data = file.read(entry["bytes"])
            if zlib.crc32(data) != entry["crc32"]:
                raise DamagedBackupError(
                    f"the checksum of array {entry['name']} is wrong"
                )
            array = np.frombuffer(data, dtype_of(entry["dtype"]))
            arrays[entry["name"]] = array.reshape(entry["shape"])
    name = folder.rpartition("/")[2]
    return Generation(name, manifest["state"], arrays, manifest["finite"])


def _array_chunks(
    arrays: dict[str, Any], entries: list[dict[str, Any]]
) -> Iterator[memoryview]:
    """Yields the bytes of arrays and notes what is needed to read them."""
    for name, source in arrays.items():
        # One at a time: the copy of a tensor lives until it is written.
        is_tensor = isinstance(source, tf.Tensor)
        array = source.numpy() if is_tensor else source
        data = _bytes_of(np.asarray(array))
        checksum = 0
        for start in range(0, len(data), _CHUNK):
            chunk = data[start : start + _CHUNK]
            checksum = zlib.crc32(chunk, checksum)
            yield chunk
        entries.append(
            {
                "name": name,
                "dtype": np.asarray(array).dtype.name,
                "shape": np.shape(array),
                "bytes": len(data),
                "crc32": checksum,
                "finite": not name.startswith(VARIABLES)
                or _is_finite(np.asarray(array)),
            }
        )


def _bytes_of(array: np.ndarray) -> memoryview:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data


def _is_finite(array: np.ndarray) -> bool:
    if array.dtype.kind in "biu":
        return True
    # The largest and the smallest are enough, and take no memory.
    if array.size == 0:
        return True
    return bool(np.isfinite(array.min()) and np.isfinite(array.max()))
