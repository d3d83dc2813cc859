"""The output of several workers in one stream."""

from collections.abc import Callable
import threading
from typing import TextIO

# Codes of terminals for colours that can be told apart on dark and on light.
_COLOURS = (36, 33, 35, 32, 34, 31)


class WorkerLog:
    """Writes lines of workers with a prefix, in colour on a terminal.

    Args:
        stream: Text stream to write to.
        name_of: Callable that returns the name of the worker with an index.
            Defaults to the index after the word.
    """

    def __init__(
        self,
        stream: TextIO,
        name_of: Callable[[int], str] = "worker {}".format,
    ) -> None:
        self._stream = stream
        self._name_of = name_of
        self._is_coloured = stream.isatty()
        self._lock = threading.Lock()

    def __call__(self, index: int, line: str) -> None:
        """Writes one line of a worker."""
        prefix = f"[{self._name_of(index)}]"
        if self._is_coloured:
            colour = _COLOURS[index % len(_COLOURS)]
            prefix = f"\033[{colour}m{prefix}\033[0m"
        # Progress bars return to the start of their line.
        for part in line.split("\r"):
            if part.strip("\b "):
                with self._lock:
                    self._stream.write(f"{prefix} {part}\n")
        self._stream.flush()
