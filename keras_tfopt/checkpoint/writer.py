"""Writing in a thread, one backup at a time."""

from collections.abc import Callable
import logging
import threading

_logger = logging.getLogger("keras_tfopt")


class _WriterThread(threading.Thread):
    """Lives as long as its work."""


def wait_for_writers() -> None:
    """Returns when no writer of this process is at work."""
    for thread in threading.enumerate():
        if isinstance(thread, _WriterThread):
            thread.join()


class BackgroundWriter:
    """Runs one piece of work at a time and never lets it hurt the caller.

    A thread lives as long as its work. Python waits for it before the process
    ends, whether by an exception or not.

    Args:
        asynchronous: Boolean. Whether to use a thread. Defaults to `True`.
    """

    def __init__(self, asynchronous: bool = True) -> None:
        self._asynchronous = asynchronous
        self._thread: threading.Thread | None = None
        self._is_failing = False

    @property
    def is_busy(self) -> bool:
        """Whether work is still under way."""
        return self._thread is not None and self._thread.is_alive()

    def submit(self, work: Callable[[], object]) -> None:
        """Starts work, once what is under way has ended.

        Args:
            work: Callable without arguments.
        """
        self.wait()
        if not self._asynchronous:
            self._run(work)
            return
        self._thread = _WriterThread(target=self._run, args=(work,))
        self._thread.start()

    def wait(self) -> None:
        """Returns when no work is under way."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            # Said once, however long the disk stays full.
            if not self._is_failing:
                _logger.warning(
                    "A backup failed: %s: %s. Training goes on with the "
                    "backups that there are; each later one is tried.",
                    type(error).__name__,
                    error,
                )
            self._is_failing = True
            return
        if self._is_failing:
            _logger.warning("Backups succeed again.")
        self._is_failing = False
