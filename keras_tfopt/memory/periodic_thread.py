"""Work that is done every few seconds, beside everything else."""

from collections.abc import Callable
import logging
import threading

_logger = logging.getLogger("keras_tfopt")

# Work that hangs in a driver must not hold its owner up.
_JOIN_SECONDS = 5.0


class PeriodicThread:
    """Calls a function at once, every few seconds, and once more at the end.

    An exception of the function is logged, the first time, and the thread goes
    on. The interpreter does not wait for it when it exits.

    Args:
        work: Callable without arguments.
        interval_seconds: Float. Time from the end of a call to the next.
        is_wanted: Callable that returns whether to go on. When it does not, the
            thread ends without a last call.
        name: String. Name of the thread.
        at_end: Callable without arguments. What the thread does last, however
            it ends. Defaults to nothing.
    """

    def __init__(
        self,
        work: Callable[[], None],
        interval_seconds: float,
        is_wanted: Callable[[], bool],
        name: str,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._work = work
        self._interval = interval_seconds
        self._is_wanted = is_wanted
        self._at_end = at_end
        self._has_failed = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=name, daemon=True
        )

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Lets the thread do its work once more, and waits for its end."""
        self._stopped.set()
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        try:
            self._try_to_work()
            while not self._stopped.wait(self._interval):
                if not self._is_wanted():
                    return
                self._try_to_work()
            self._try_to_work()
        finally:
            self._at_end()

    def _try_to_work(self) -> None:
        try:
            self._work()
        except Exception:
            if not self._has_failed:
                name = self._thread.name
                _logger.exception("%s fails, and keeps trying.", name)
            self._has_failed = True
