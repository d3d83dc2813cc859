"""A line of figures beside Keras' progress bar."""

from collections.abc import Mapping
import logging
import sys
import time
from typing import Any

import keras

from keras_tfopt import _compat_fit
from keras_tfopt.telemetry.callback import TelemetryCallback
from keras_tfopt.telemetry.history import History
from keras_tfopt.telemetry.live_line import LiveLine
from keras_tfopt.telemetry.live_line import columns_of
from keras_tfopt.telemetry.live_line import is_terminal
from keras_tfopt.telemetry.status_line import eta_seconds
from keras_tfopt.telemetry.status_line import status_line

_logger = logging.getLogger("keras_tfopt")


class ConsoleLogger(TelemetryCallback):
    """Shows micro-batch, memory, XLA, waiting for data and the time left.

    In a terminal it is a line under Keras' progress bar that changes once a
    second, and one line stays for each epoch. Elsewhere, as in files and
    notebooks, and with `fit(verbose=2)`, there is the line of each epoch only,
    without control characters. With `fit(verbose=0)` nothing is shown, or, if
    asked for, a line with losses and metrics in the place of Keras' bar. What
    is not known is left out.

    A bar that is wider than the terminal leaves no room under it; then there
    are the lines of the epochs only.

    Example:

    ```python
    import keras
    from keras_tfopt import AccumModel
    from keras_tfopt import callbacks

    inputs = keras.Input((4,))
    model = AccumModel(inputs, keras.layers.Dense(1)(inputs), microbatch_size=4)
    model.compile("sgd", "mse")
    x, y = keras.ops.ones((16, 4)), keras.ops.ones((16, 1))
    model.fit(x, y, batch_size=8, callbacks=[callbacks.ConsoleLogger()])
    ```

    Args:
        verbose: `"auto"`, 0 or 1. Whether to show anything; `"auto"` does if
            `fit` does. Defaults to `"auto"`.
        interval_seconds: Float. Time between two changes of the line. Defaults
            to 1, which is the shortest.

    Raises:
        ValueError: If a value is none of these.
    """

    def __init__(
        self, verbose: str | int = "auto", interval_seconds: float = 1.0
    ) -> None:
        super().__init__(interval_seconds)
        if verbose not in ("auto", 0, 1):
            raise ValueError(
                "Invalid value for argument `verbose`. "
                f"Received: verbose={verbose!r}. Expected: 'auto', 0 or 1."
            )
        self.verbose = verbose
        self._is_shown = False
        self._is_interactive = True
        self._has_bar = False
        self._bar: Any = None
        self._live: LiveLine | None = None
        # Made by the sampler, written by the thread of training.
        self._line = self._written = ""
        self._heading: str | None = None
        self._is_complete = False
        self._epoch = self._batch = 0
        self._steps: int | None = None
        self._start: tuple[float, int] | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Joins the session, and looks at where `fit` writes."""
        params = self.params or {}
        of_fit = params.get("verbose", 1)
        self._has_bar = of_fit != 0
        self._is_shown = (
            self._has_bar if self.verbose == "auto" else (bool(self.verbose))
        )
        # Other threads would be told the default.
        self._is_interactive = keras.config.is_interactive_logging_enabled()
        is_live = (
            self._is_shown
            and of_fit != 2
            and self._is_interactive
            and is_terminal(sys.stdout)
        )
        self._live = LiveLine(sys.stdout, self._has_bar) if is_live else None
        self._bar = _compat_fit.progress_bar() if is_live else None
        self._line = self._written = ""
        self._heading, self._start = None, None
        self._steps = params.get("steps")
        self._is_complete = False
        super().on_train_begin(logs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Leaves the line of the epoch before under Keras' bar."""
        super().on_epoch_begin(epoch, logs)
        self._print_epoch()
        self._epoch, self._batch = epoch, -1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Shows the line when there is a new one."""
        super().on_train_batch_end(batch, logs)
        self._batch = batch
        if self._start is None:
            # The first step traces.
            self._start = time.perf_counter(), self._done
        if self._live is not None and self._line != self._written:
            self._show(self._line, logs or {})

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Makes room for what Keras writes at the end of an epoch."""
        super().on_epoch_end(epoch, logs)
        if self._steps is None:
            self._steps = self._batch + 1
        self._heading = self._prefix(logs or {})
        if self._live is not None:
            self._guarded(self._live.clear)

    def on_train_end(self, logs: Any = None) -> None:
        """Leaves the session."""
        self._is_complete = True
        super().on_train_end(logs)

    def publish(self, history: History) -> None:
        """Makes the line of the newest values."""
        if self._is_shown and history.latest is not None:
            self._line = status_line(history.latest, self._eta())

    def close(self) -> None:
        """Leaves the line of the last epoch, with the last values."""
        if self._is_complete:
            self._print_epoch()

    @property
    def _done(self) -> int:
        """Batches since the first epoch of all."""
        return self._epoch * (self._steps or 0) + self._batch + 1

    def _eta(self) -> float | None:
        epochs = (self.params or {}).get("epochs")
        if self._start is None or not self._steps or not epochs:
            return None
        start, done_before = self._start
        done = self._done
        remaining = epochs * self._steps - done
        if remaining <= 0:
            return None
        return eta_seconds(
            time.perf_counter() - start, done - done_before, remaining
        )

    def _show(self, line: str, logs: Mapping[str, Any]) -> None:
        live = self._live
        if live is None:
            return
        if self._has_bar:
            # None is there yet, or one that wraps.
            width = _compat_fit.width_of_bar(self._bar)
            if not 0 < width < columns_of(sys.stdout):
                return
        self._written = line
        self._guarded(live.show, self._prefix(logs) + line)

    def _print_epoch(self) -> None:
        """Writes a line that stays, once for each epoch."""
        heading, self._heading = self._heading, None
        if heading is None or not self._is_shown:
            return
        line = (heading + self._line).removesuffix(" - ")
        if not self._is_interactive:
            _logger.info(line)
        elif line:
            self._guarded(sys.stdout.write, f"{line}\n")
            self._guarded(sys.stdout.flush)

    def _prefix(self, logs: Mapping[str, Any]) -> str:
        """Returns what Keras' bar would say, where there is none."""
        if self._has_bar:
            return ""
        params = self.params or {}
        parts = [f"epoch {self._epoch + 1}/{params.get('epochs', '?')}"]
        parts.append(f"{self._batch + 1}/{self._steps or '?'}")
        parts += [
            f"{name}: {float(value):.4f}"
            for name, value in logs.items()
            if isinstance(value, (int, float))
        ]
        return " - ".join([*parts, ""])

    def _guarded(self, write: Any, *arguments: Any) -> None:
        """Writes, or never again: a pipe may have closed."""
        try:
            write(*arguments)
        except (OSError, ValueError) as error:
            self._is_shown, self._live = False, None
            _logger.warning("Nothing is shown any more: %s", error)
