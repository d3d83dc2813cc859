"""One worker process, and its output line by line."""

from collections.abc import Callable
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading

_PR_SET_PDEATHSIG = 1


class Worker:
    """A process of its own session, whose lines are handed on.

    A signal from a terminal reaches the launcher alone, which passes it on. A
    worker whose launcher is killed gets `SIGTERM` from the kernel, on Linux.

    Args:
        index: Integer. Index of the worker in its cluster.
        command: List of strings.
        environment: Dict of strings.
        show: Callable `(index, line)` that is given each line of output.
    """

    def __init__(
        self,
        index: int,
        command: list[str],
        environment: dict[str, str],
        show: Callable[[int, str], None],
    ) -> None:
        self.index = index
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent(),
            text=True,
            errors="replace",
            bufsize=1,
        )
        self._reader = threading.Thread(
            target=self._read, args=(show,), daemon=True
        )
        self._reader.start()

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def poll(self) -> int | None:
        """Returns the exit code, or `None` while it runs."""
        return self._process.poll()

    def send(self, number: int) -> None:
        """Sends a signal to the worker and all processes it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        """Waits for the end of the process and of its output."""
        self._process.wait()
        # What the worker started may hold its output open.
        self.send(signal.SIGKILL)
        self._reader.join()

    def _read(self, show: Callable[[int, str], None]) -> None:
        stream = self._process.stdout
        if stream is None:
            return
        with stream:
            for line in stream:
                show(self.index, line.rstrip("\n"))


def _die_with_parent() -> Callable[[], None] | None:
    """Returns what a child must do to end with its parent, where it can."""
    if sys.platform != "linux":
        return None
    # Loaded here: a child of a process with threads must not import.
    libc = ctypes.CDLL(None, use_errno=True)

    def ask_kernel() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    return ask_kernel
