"""A log of one JSON object per line, and its reader."""

from collections.abc import Mapping
import dataclasses
import json
import math
import os
from typing import Any

from keras_tfopt.telemetry.history import Snapshot
from keras_tfopt.telemetry.records import Detail
from keras_tfopt.telemetry.records import EpochEnd
from keras_tfopt.telemetry.records import PlanChange


class JSONLinesFile:
    """Appends objects to a file, each complete in a line.

    Args:
        path: String.
    """

    def __init__(self, path: str) -> None:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        self._file = open(path, "a", encoding="utf-8")
        if self._file.tell():
            # A process that was killed may have left half a line.
            self._file.write("\n")

    def write(self, entry: Mapping[str, Any]) -> None:
        """Writes an object."""
        self._file.write(json.dumps(_plain(entry), allow_nan=False) + "\n")

    def flush(self) -> None:
        """Hands what was written to the system."""
        self._file.flush()

    def close(self) -> None:
        """Ends the file."""
        self._file.close()


def read_json_lines(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Reads the log of `callbacks.JSONLinesLogger`.

    Half a line, as a process leaves it that is killed while it writes, is left
    out.

    Example:

    ```python
    from keras_tfopt.telemetry.json_lines import read_json_lines

    with open("log.jsonl", "w") as file:
        print('{"kind": "values", "step": 3}', file=file)
        print('{"kind": "val', end="", file=file)
    assert read_json_lines("log.jsonl") == [{"kind": "values", "step": 3}]
    ```

    Args:
        path: String or path.

    Returns:
        List of dicts, oldest first.
    """
    entries = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                entries.append(entry)
    return entries


def entry_of_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    """Returns all values of a moment, with labels after a slash."""
    values = {
        "/".join((name, *(value for _, value in labels))): number
        for (name, labels), number in snapshot.values.items()
    }
    for name, distribution in snapshot.distributions.items():
        values[f"{name}_count"] = distribution.count
        values[f"{name}_sum"] = distribution.total
    return {
        "kind": "values",
        "time": snapshot.time,
        "step": snapshot.step,
        "values": values,
    }


def entry_of_record(record: Any) -> dict[str, Any] | None:
    """Returns what stands for a record, `None` for those that have no entry."""
    if isinstance(record, EpochEnd):
        return {
            "kind": "epoch",
            "time": record.time,
            "step": record.updates,
            "epoch": record.epoch,
            "logs": dict(record.logs),
        }
    if isinstance(record, PlanChange):
        event = dataclasses.asdict(record.event)
        return {"kind": "plan", "time": record.time, **event}
    if isinstance(record, Detail):
        return {
            "kind": "detail",
            "time": record.time,
            "step": record.updates,
            "tag": record.tag,
            "value": record.value,
        }
    return None


def _plain(value: Any) -> Any:
    """Returns a value as JSON takes it: NaN and infinity become `null`."""
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
