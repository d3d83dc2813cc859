"""A table at the end of `fit`."""

from typing import Any

from keras_tfopt.plan import PlanEvent
from keras_tfopt.telemetry.callback import TelemetryCallback
from keras_tfopt.telemetry.history import History
from keras_tfopt.telemetry.history import Snapshot
from keras_tfopt.telemetry.records import PlanChange
from keras_tfopt.telemetry.summary import SummaryRow
from keras_tfopt.telemetry.summary import summary_rows


class TrainingSummary(TelemetryCallback):
    """Prints what happened in a training, what it cost, and what to do.

    Updates and throughput, the share of waiting for data, peaks of memory,
    compilations, each change of plan with its reason, and what was recovered
    from. Only what was measured is shown. It also comes when an exception ends
    `fit`.

    Example:

    ```python
    import keras
    from keras_tfopt import callbacks

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    summary = callbacks.TrainingSummary(verbose=0)
    x, y = keras.ops.ones((16, 4)), keras.ops.ones((16, 1))
    model.fit(x, y, batch_size=8, callbacks=[summary], verbose=0)
    assert summary.rows[0].figure.startswith("2 in ")
    ```

    Args:
        verbose: `"auto"`, 0 or 1. Whether to print it; `"auto"` does if `fit`
            prints. Defaults to `"auto"`.

    Attributes:
        rows: Tuple of `SummaryRow`, when `fit` has ended.

    Raises:
        ValueError: If `verbose` is none of these.
    """

    def __init__(self, verbose: str | int = "auto") -> None:
        super().__init__(interval_seconds=60.0)
        if verbose not in ("auto", 0, 1):
            raise ValueError(
                "Invalid value for argument `verbose`. "
                f"Received: verbose={verbose!r}. Expected: 'auto', 0 or 1."
            )
        self.verbose = verbose
        self.rows: tuple[SummaryRow, ...] = ()
        self._first: Snapshot | None = None
        self._last: Snapshot | None = None
        self._changes: list[PlanEvent] = []

    def open(self, history: History) -> None:
        """Notes what was before."""
        self._first, self._last = history.latest, None
        self._changes = []

    def handle(self, records: list[Any]) -> None:
        """Notes changes of plan."""
        self._changes += [
            record.event for record in records if isinstance(record, PlanChange)
        ]

    def publish(self, history: History) -> None:
        """Notes the newest values."""
        self._last = history.latest

    def close(self) -> None:
        """Makes the table, and prints it."""
        if self._first is None or self._last is None:
            return
        rows = summary_rows(self._first, self._last, self._changes)
        self.rows = tuple(rows)
        verbose = self.verbose
        if verbose == "auto":
            verbose = (self.params or {}).get("verbose", 1)
        if verbose and rows:
            _print(rows)


def _print(rows: list[SummaryRow]) -> None:
    # Training does not wait for what only shows.
    import rich.console
    import rich.table

    table = rich.table.Table(title="Training", title_justify="left")
    for heading in ("", "", "what to do"):
        table.add_column(heading)
    for row in rows:
        table.add_row(row.what, row.figure, row.advice)
    rich.console.Console().print(table)
