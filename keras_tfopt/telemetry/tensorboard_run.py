"""One run in TensorBoard: curves, texts, histograms, pictures, HParams."""

from collections.abc import Mapping
import dataclasses
import time
from typing import Any

import numpy as np
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams import summary as hparams_summary
from tensorboard.plugins.hparams import summary_v2 as hparams

from keras_tfopt.plan import PlanEvent
from keras_tfopt.telemetry.catalogue import all_curves
from keras_tfopt.telemetry.event_file import EventFile
from keras_tfopt.telemetry.event_file import counted_summary
from keras_tfopt.telemetry.event_file import histogram_summary
from keras_tfopt.telemetry.event_file import image_summary
from keras_tfopt.telemetry.event_file import scalar_summary
from keras_tfopt.telemetry.event_file import text_summary
from keras_tfopt.telemetry.history import History
from keras_tfopt.telemetry.metric import TAG_PREFIX
from keras_tfopt.telemetry.records import CallRecord
from keras_tfopt.telemetry.records import Detail
from keras_tfopt.telemetry.records import EpochEnd
from keras_tfopt.telemetry.records import Image
from keras_tfopt.telemetry.records import PlanChange
from keras_tfopt.telemetry.tensorboard_layout import layout_summary
from keras_tfopt.training.failure import describe
from keras_tfopt.training.failure import describe_change


class TensorBoardRun:
    """Writes what the sampler finds to a run of TensorBoard.

    Args:
        directory: String. Folder of the run.
        settings: Dict of numbers and strings, for HParams.
    """

    def __init__(self, directory: str, settings: Mapping[str, Any]) -> None:
        self._file = EventFile(directory)
        self._settings = dict(settings)
        self._last_step = -1
        self._is_described = False
        self._changes: list[PlanEvent] = []
        self._file.write(time.time(), 0, layout_summary())

    def describe(self, first: CallRecord) -> None:
        """Writes what the run is made of, once.

        Args:
            first: `CallRecord` of the first call.
        """
        if self._is_described:
            return
        self._is_described = True
        settings, plan = dict(self._settings), first.plan
        moment = first.time, first.updates or 0
        if plan is not None:
            settings.update(
                {
                    name: value
                    for name, value in dataclasses.asdict(plan).items()
                    if isinstance(value, (bool, int, float, str))
                }
            )
            text = f"The first step ran under: {describe(plan)}"
            self._file.write(*moment, _text("plan", text))
        self._file.write(*moment, _text("configuration", _table(settings)))
        self._file.write(*moment, hparams.hparams_pb(settings))

    def write_curves(self, history: History, is_last: bool) -> None:
        """Writes a point of each curve that is known."""
        latest = history.latest
        if latest is None or (latest.step == self._last_step and not is_last):
            return
        self._last_step = latest.step
        points = [
            scalar_summary("/".join((TAG_PREFIX + curve.tag, *parts)), value)
            for curve in all_curves()
            for labels, value in curve.signal.measure(history).items()
            for parts in [[value for _, value in labels]]
        ]
        self._file.write(latest.time, latest.step, *points)
        self._file.flush()

    def write(self, record: Any) -> None:
        """Writes what is more than a value at a time.

        Args:
            record: `EpochEnd`, `PlanChange`, `Detail`, `Image`; anything else
                is left out.
        """
        if isinstance(record, EpochEnd):
            points = [
                scalar_summary(f"{TAG_PREFIX}epoch/{name}", value)
                for name, value in record.logs.items()
            ]
            self._file.write(record.time, record.updates, *points)
            self._file.flush()
        elif isinstance(record, PlanChange):
            self._write_change(record.time, record.event)
        elif isinstance(record, Detail):
            point = scalar_summary(TAG_PREFIX + record.tag, record.value)
            self._file.write(record.time, record.updates, point)
        elif isinstance(record, Image):
            image = image_summary(TAG_PREFIX + record.tag, record.pixels)
            self._file.write(record.time, record.updates, image)

    def _write_change(self, time: float, event: PlanEvent) -> None:
        # TensorBoard shows one text for each step.
        if self._changes and self._changes[-1].step != event.step:
            self._changes = []
        self._changes.append(event)
        text = "\n".join(f"- {_sentence(change)}" for change in self._changes)
        self._file.write(time, event.step, _text("plan_events", text))

    def write_weights(self, step: int, variables: list[Any]) -> None:
        """Writes the distribution of each variable, read one by one."""
        for variable in variables:
            self._file.write(
                time.time(),
                step,
                histogram_summary(
                    f"{TAG_PREFIX}weights/{variable.path}", variable.numpy()
                ),
            )
        self._file.flush()

    def write_gradients(
        self, step: int, names: list[str], rows: np.ndarray
    ) -> None:
        """Writes the distribution of each gradient that there is.

        Args:
            step: Integer. Optimizer updates so far.
            names: List of the paths of the variables.
            rows: Array with a row for each: least value, largest value, counts.
        """
        points = [
            counted_summary(
                f"{TAG_PREFIX}gradients/{name}", row[0], row[1], row[2:]
            )
            for name, row in zip(names, rows, strict=True)
            if row[2:].any()
        ]
        self._file.write(time.time(), step, *points)
        self._file.flush()

    def close(self, is_complete: bool) -> None:
        """Ends the run.

        Args:
            is_complete: Boolean. Whether `fit` came to its end.
        """
        status = api_pb2.STATUS_SUCCESS
        if not is_complete:
            status = api_pb2.STATUS_FAILURE
        if self._is_described:
            ended = hparams_summary.session_end_pb(status)
            self._file.write(time.time(), max(self._last_step, 0), ended)
        self._file.close()


def _text(name: str, text: str) -> Any:
    return text_summary(f"{TAG_PREFIX}{name}", text)


def _table(settings: Mapping[str, Any]) -> str:
    rows = [f"| {name} | {value} |" for name, value in settings.items()]
    return "\n".join(["| setting | value |", "| --- | --- |", *rows])


def _sentence(event: PlanEvent) -> str:
    return (
        f"Step {event.step}: {describe_change(event.old, event.new)}, "
        f"{event.seconds:.1f} s lost: {event.reason}"
    )
