"""Signals that ask a process to end, taken between two steps."""

import inspect
import os
import signal
import threading
import types
from typing import Any
import weakref

from keras_tfopt import _compat_fit


class TrainingInterrupted(SystemExit):
    """Training was interrupted by a signal, and is backed up.

    Nobody has to catch it: the process then ends with the exit code that a
    shell gives to a process that a signal ended, 128 and the number of the
    signal: 143 for SIGTERM, 130 for SIGINT, 138 for SIGUSR1.

    Attributes:
        signal: `signal.Signals`.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.signal = signal.Signals(number)


class SignalWatch:
    """Notes signals while `fit` runs, in place of what they would do.

    A second signal does what it did before.

    Args:
        names: Sequence of strings, such as `"SIGTERM"`.

    Attributes:
        pending: Integer or `None`. The signal that waits to be obeyed.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._numbers = [getattr(signal, name) for name in names]
        self._previous: dict[int, Any] = {}
        self._epoch_iterator: Any = None
        self.pending: int | None = None

    def install(self, epoch_iterator: Any) -> None:
        """Starts to note signals; Python allows it in the main thread only.

        Args:
            epoch_iterator: What the `fit` to interrupt iterates over.
        """
        self.remove()
        self.pending = None
        self._epoch_iterator = weakref.ref(epoch_iterator)
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self._numbers:
            _retire(number)
            self._previous[number] = signal.signal(number, self._note)

    def remove(self) -> None:
        """Gives signals their meaning back."""
        for number, previous in self._previous.items():
            # What was not set from Python cannot be set again from there.
            signal.signal(number, previous or signal.SIG_DFL)
        self._previous = {}

    def _note(self, number: int, frame: types.FrameType | None) -> None:
        if self.pending is None and self._is_running(frame):
            self.pending = number
            return
        # An exception ended `fit`, which tells nobody; or it is the second.
        self.remove()
        os.kill(os.getpid(), number)

    def _is_running(self, frame: types.FrameType | None) -> bool:
        return _compat_fit.is_running(self._epoch_iterator(), frame)


def _retire(number: int) -> None:
    """Takes the handlers of each `fit` away that an exception ended."""
    frame = inspect.currentframe()
    watch = getattr(signal.getsignal(number), "__self__", None)
    while isinstance(watch, SignalWatch) and not watch._is_running(frame):
        watch.remove()
        watch = getattr(signal.getsignal(number), "__self__", None)
