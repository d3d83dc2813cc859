"""A training's values as a file of JSON lines."""

import os
from typing import Any

from keras_tfopt.telemetry.callback import TelemetryCallback
from keras_tfopt.telemetry.history import History
from keras_tfopt.telemetry.json_lines import JSONLinesFile
from keras_tfopt.telemetry.json_lines import entry_of_record
from keras_tfopt.telemetry.json_lines import entry_of_snapshot
from keras_tfopt.telemetry.worker import worker_of


class JSONLinesLogger(TelemetryCallback):
    """Appends what a training is doing to a file, one JSON object per line.

    For notebooks, scripts and log collectors. `kind` is `"values"` for all
    metrics at a moment, `"epoch"` for what Keras reports at the end of one,
    `"plan"` for a change of plan, and `"detail"` for values in no catalogue.
    `step` counts optimizer updates. NaN and infinity are `null`.
    `keras_tfopt.telemetry.json_lines.read_json_lines` reads it back.

    Example:

    ```python
    import keras
    from keras_tfopt import AccumModel
    from keras_tfopt import callbacks
    from keras_tfopt.telemetry.json_lines import read_json_lines

    inputs = keras.Input((4,))
    model = AccumModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    x, y = keras.ops.ones((16, 4)), keras.ops.ones((16, 1))
    logger = callbacks.JSONLinesLogger("training.jsonl")
    model.fit(x, y, batch_size=8, callbacks=[logger], verbose=0)
    last = read_json_lines("training.jsonl")[-1]
    assert last["values"]["steps_total"] == 2
    ```

    Args:
        path: String or path. The file; entries are added to what is there.
            Of several workers each adds its name to it.
        interval_seconds: Float. Time between two entries of values. Defaults
            to 10.

    Raises:
        ValueError: If a value is none of these.
    """

    def __init__(
        self, path: str | os.PathLike, interval_seconds: float = 10.0
    ) -> None:
        super().__init__(interval_seconds)
        if not isinstance(path, (str, os.PathLike)) or not str(path):
            raise ValueError(
                "Invalid value for argument `path`. "
                f"Received: path={path!r}. Expected: the path of a file."
            )
        self.path = os.fspath(path)
        self._file: JSONLinesFile | None = None

    def open(self, history: History) -> None:
        """Opens the file."""
        worker = worker_of(os.environ.get("TF_CONFIG"))
        path = self.path if worker is None else f"{self.path}.{worker[0]}"
        self._file = JSONLinesFile(path)

    def handle(self, records: list[Any]) -> None:
        """Writes what happened."""
        if self._file is None:
            return
        for record in records:
            entry = entry_of_record(record)
            if entry is not None:
                self._file.write(entry)

    def publish(self, history: History) -> None:
        """Writes all values."""
        if history.latest is not None and self._file is not None:
            self._file.write(entry_of_snapshot(history.latest))
            self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
