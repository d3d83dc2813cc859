"""Whether a `fit` still runs, for threads that work beside it."""

import sys
import threading
import weakref

from keras_tfopt import _compat_fit


class FitWatch:
    """Tells any thread whether the `fit` that it was made in still runs.

    Keras tells callbacks when a `fit` ends, but not when an exception ends it.

    Raises:
        RuntimeError: If it is not made inside of `fit`, by a callback.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        iterator = _compat_fit.fit_locals()["epoch_iterator"]
        self._iterator = weakref.ref(iterator)

    def is_running(self) -> bool:
        """Whether that `fit` is on the stack of its thread."""
        frame = sys._current_frames().get(self._thread)
        return _compat_fit.is_running(self._iterator(), frame)
