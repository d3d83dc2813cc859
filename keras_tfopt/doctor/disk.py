"""Room for backups and logs."""

from collections.abc import Iterator
import os
import shutil
import tempfile

from keras_tfopt.doctor.finding import ERROR
from keras_tfopt.doctor.finding import OK
from keras_tfopt.doctor.finding import WARNING
from keras_tfopt.doctor.finding import Finding

TOPIC = "disk"
_GIB = 2**30
# A backup of 100 million parameters with Adam's slots takes 1.1 GiB.
_LITTLE_BYTES = 5 * _GIB


def examine_disk(path: str | os.PathLike = ".") -> Iterator[Finding]:
    """Yields whether a folder can be written to, and how much fits.

    Args:
        path: Path of the folder. Defaults to the working directory.
    """
    for folder in dict.fromkeys((os.path.abspath(path), tempfile.gettempdir())):
        try:
            with tempfile.TemporaryFile(dir=folder):
                free = shutil.disk_usage(folder).free
        except OSError as error:
            yield Finding(
                TOPIC,
                ERROR,
                f"{folder} cannot be written to: {error.strerror}",
                "Backups and logs need another folder.",
            )
            continue
        text = f"{free / _GIB:.1f} GiB free in {folder}"
        if free < _LITTLE_BYTES:
            advice = "Keep fewer backups, or put them elsewhere."
            yield Finding(TOPIC, WARNING, text, advice)
        else:
            yield Finding(TOPIC, OK, text)
