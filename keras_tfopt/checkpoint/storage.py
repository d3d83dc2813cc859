"""Folders and files that survive a kill, here or in an object store."""

from collections.abc import Iterable
import os
import shutil
from typing import Any
from typing import BinaryIO
from typing import Protocol

import tensorflow as tf

Chunks = Iterable[Any]

# What a full disk, a lost mount or a store that does not answer raises.
STORAGE_ERRORS = (OSError, tf.errors.OpError)


class Storage(Protocol):
    """Where backups are kept."""

    def make_folder(self, path: str) -> None:
        """Makes a folder and its parents, if need be."""

    def list_folder(self, path: str) -> list[str]:
        """Returns the names in a folder, sorted; none if there is no folder."""

    def write(self, path: str, chunks: Chunks) -> None:
        """Writes a file so that it is on the disk, not only on its way."""

    def open(self, path: str) -> BinaryIO:
        """Opens a file for reading."""

    def size(self, path: str) -> int:
        """Returns the bytes of a file."""

    def publish(self, folder: str, path: str) -> None:
        """Gives a finished folder its final name, durably."""

    def remove(self, path: str) -> None:
        """Removes a folder and what is in it."""

    def remove_empty(self, path: str) -> None:
        """Removes a folder if nothing is in it."""


class LocalStorage:
    """A file system of this machine."""

    def make_folder(self, path: str) -> None:
        """Makes a folder and its parents, if need be."""
        os.makedirs(path, exist_ok=True)

    def list_folder(self, path: str) -> list[str]:
        """Returns the names in a folder, sorted; none if there is no folder."""
        return sorted(os.listdir(path)) if os.path.isdir(path) else []

    def write(self, path: str, chunks: Chunks) -> None:
        """Writes a file and waits until the disk has it."""
        with open(path, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())

    def open(self, path: str) -> BinaryIO:
        """Opens a file for reading."""
        return open(path, "rb")

    def size(self, path: str) -> int:
        """Returns the bytes of a file."""
        return os.path.getsize(path)

    def publish(self, folder: str, path: str) -> None:
        """Renames a folder and waits until the disk knows both names."""
        _sync_folder(folder)
        os.rename(folder, path)
        _sync_folder(os.path.dirname(path))

    def remove(self, path: str) -> None:
        """Removes a folder and what is in it."""
        shutil.rmtree(path)

    def remove_empty(self, path: str) -> None:
        """Removes a folder if nothing is in it."""
        if os.path.isdir(path) and not os.listdir(path):
            os.rmdir(path)


class RemoteStorage:
    """A file system that TensorFlow reaches by its scheme, such as `gs://`.

    Its renames need not be atomic: whoever reads must verify.
    """

    def make_folder(self, path: str) -> None:
        """Makes a folder and its parents, if need be."""
        tf.io.gfile.makedirs(path)

    def list_folder(self, path: str) -> list[str]:
        """Returns the names in a folder, sorted; none if there is no folder."""
        if not tf.io.gfile.isdir(path):
            return []
        return sorted(name.rstrip("/") for name in tf.io.gfile.listdir(path))

    def write(self, path: str, chunks: Chunks) -> None:
        """Writes a file; the store has it once this returns."""
        with tf.io.gfile.GFile(path, "wb") as file:
            for chunk in chunks:
                file.write(bytes(chunk))

    def open(self, path: str) -> BinaryIO:
        """Opens a file for reading."""
        return tf.io.gfile.GFile(path, "rb")

    def size(self, path: str) -> int:
        """Returns the bytes of a file."""
        return tf.io.gfile.stat(path).length

    def publish(self, folder: str, path: str) -> None:
        """Renames the files of a folder in the order of their names.

        Stores have no folders to rename. A backup without its manifest, whose
        name is the last, counts as torn.
        """
        tf.io.gfile.makedirs(path)
        for name in self.list_folder(folder):
            tf.io.gfile.rename(f"{folder}/{name}", f"{path}/{name}")
        tf.io.gfile.rmtree(folder)

    def remove(self, path: str) -> None:
        """Removes a folder and what is in it."""
        tf.io.gfile.rmtree(path)

    def remove_empty(self, path: str) -> None:
        """Removes a folder if nothing is in it."""
        if tf.io.gfile.isdir(path) and not tf.io.gfile.listdir(path):
            tf.io.gfile.rmtree(path)


def storage_for(path: str) -> Storage:
    """Returns the storage that a path belongs to.

    Args:
        path: String. A path of this machine, or one with a scheme.
    """
    return RemoteStorage() if "://" in path else LocalStorage()


def _sync_folder(path: str) -> None:
    descriptor = os.open(path or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
