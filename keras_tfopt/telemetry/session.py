"""One sampler for each model, whoever publishes what it finds."""

import collections
import logging
import math
import sys
import threading
import time
from typing import Any
import weakref

import keras

from keras_tfopt import _compat_fit
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.telemetry.figures import TrainingFigures
from keras_tfopt.telemetry.history import History
from keras_tfopt.telemetry.publisher import Publisher
from keras_tfopt.telemetry.publisher import PublisherGroup
from keras_tfopt.telemetry.row_counter import RowCounter
from keras_tfopt.telemetry.sources import AllocatorSource
from keras_tfopt.telemetry.sources import HostSource
from keras_tfopt.telemetry.sources import build_info
from keras_tfopt.telemetry.sources import explain_absences
from keras_tfopt.telemetry.sources import poll
from keras_tfopt.telemetry.step_watch import StepWatch
from keras_tfopt.telemetry.store import MetricStore

_logger = logging.getLogger("keras_tfopt")

_ATTRIBUTE = "_keras_tfopt_telemetry"
_SAMPLE_SECONDS = 1.0
_MAX_RECORDS = 2**16
# Some values take a while.
_EXPLAIN_SECONDS = 60.0
# A disk or a server may be stuck for good.
_END_SECONDS = 30


def session_of(model: keras.Model) -> "TelemetrySession":
    """Returns the session of a model, which all its publishers share."""
    # In `vars`, past the tracking of `__setattr__`.
    attributes = vars(model)
    if _ATTRIBUTE not in attributes:
        attributes[_ATTRIBUTE] = TelemetrySession()
    return attributes[_ATTRIBUTE]


class TelemetrySession:
    """Collects what a model's training tells, in a thread of its own.

    The training thread puts small records on a bounded queue. The sampler takes
    them off once a second, asks other sources for their values, and lets the
    publishers publish. It lives as long as a `fit`, also one that an exception
    ends, of which Keras tells nobody.

    Attributes:
        store: `MetricStore`.
        history: `History` of its snapshots.
    """

    def __init__(self) -> None:
        self.store = MetricStore()
        self.history = History()
        self._figures = TrainingFigures(self.store)
        self._records: collections.deque = collections.deque(
            maxlen=_MAX_RECORDS
        )
        self._publishers = PublisherGroup()
        self._watch: StepWatch | None = None
        self._leader: Any = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._failed_sources: set[str] = set()
        self._sources: list[Any] = []
        self._fit_thread = 0
        self._explain_at = math.inf
        self._iterator: Any = None

    def join(self, publisher: Publisher, model: keras.Model) -> None:
        """Adds a publisher, and starts the sampler for the first one.

        Args:
            publisher: `Publisher`.
            model: The model in `fit`.
        """
        fit = _fit_around()
        iterator = fit.get("epoch_iterator")
        if self._thread is not None and not self._is_fit_of(iterator):
            # Of a `fit` that an exception ended a moment ago.
            self.end()
        if self._thread is None:
            self._begin(model, publisher, fit)
        self._publishers.add(publisher, self.history)

    def leave(self, publisher: Publisher) -> None:
        """Takes a publisher out; the last one ends the sampler."""
        if self._publishers.mark_done(publisher):
            self.end()

    def watch_for(self, publisher: Publisher) -> StepWatch | None:
        """Returns what takes notes, for the one publisher that shall call it.

        Args:
            publisher: `Publisher`.
        """
        return self._watch if publisher is self._leader else None

    def put(self, record: Any) -> None:
        """Hands a record to the sampler, without waiting."""
        self._records.append(record)

    @property
    def updates(self) -> int:
        """Optimizer updates so far, when last asked."""
        return 0 if self._watch is None else self._watch.updates

    def end(self) -> None:
        """Publishes what is left, and ends the sampler."""
        thread = self._thread
        if thread is None:
            return
        self._stop.set()
        if thread is threading.current_thread():
            return
        thread.join(_END_SECONDS)
        if thread.is_alive():
            _logger.warning(
                "Telemetry did not end within %d s; somebody who publishes "
                "is stuck. It is left behind.",
                _END_SECONDS,
            )

    def _begin(
        self, model: keras.Model, leader: Publisher, fit: dict[str, Any]
    ) -> None:
        iterator = fit.get("epoch_iterator")
        callbacks = fit.get("callbacks")
        others = [] if callbacks is None else callbacks.callbacks
        params = {} if callbacks is None else callbacks.params
        self._iterator = None if iterator is None else weakref.ref(iterator)
        self._fit_thread = threading.get_ident()
        self._sources = [
            AllocatorSource(),
            HostSource(),
            *(other for other in others if hasattr(other, "metric_readings")),
        ]
        self._records.clear()
        self._figures.begin_fit(plan_of(model) is not None)
        info = build_info()
        self.store.set(info.name, info.value, **info.labels)
        self._watch = StepWatch(
            model, RowCounter(iterator), (params or {}).get("steps"), self.put
        )
        self._leader = leader
        self._stop = threading.Event()
        self._explain_at = time.monotonic() + _EXPLAIN_SECONDS
        self._snapshot()
        self._thread = threading.Thread(
            target=self._run, name="keras_tfopt telemetry", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(_SAMPLE_SECONDS):
                if not self._is_alive():
                    break
                self._sample(is_last=False)
            self._sample(is_last=True)
        finally:
            if self._watch is not None:
                self._watch.end()
            self._publishers.close()
            self._watch = self._leader = self._thread = None
            self._sources = []

    def _sample(self, is_last: bool) -> None:
        start = time.thread_time()
        self._hand_out()
        poll(self.store, self._sources, self._failed_sources)
        # Some put records of their own; there may be no next sample.
        self._hand_out()
        if is_last or time.monotonic() > self._explain_at:
            self._explain_absences()
        if is_last:
            # What has ended is not stalled.
            self.store.set("last_step_timestamp_seconds", None)
        self._snapshot()
        self._publishers.publish(self.history, is_last)
        self.store.add(
            "telemetry_overhead_seconds_total", time.thread_time() - start
        )

    def _hand_out(self) -> None:
        records = [self._records.popleft() for _ in range(len(self._records))]
        self._figures.take(records)
        self._publishers.handle(records)

    def _explain_absences(self) -> None:
        self._explain_at = math.inf
        snapshot = self.store.snapshot(time.time(), 0)
        known = {name for name, _ in snapshot.values}
        explain_absences(self.store, known | set(snapshot.distributions))

    def _snapshot(self) -> None:
        self.history.append(self.store.snapshot(time.time(), self.updates))

    def _is_fit_of(self, iterator: Any) -> bool:
        mine = None if self._iterator is None else self._iterator()
        return mine is iterator

    def _is_alive(self) -> bool:
        """Whether the `fit` is still under way."""
        if self._iterator is None:
            return True
        frame = sys._current_frames().get(self._fit_thread)
        return _compat_fit.is_running(self._iterator(), frame)


def plan_of(model: keras.Model) -> ExecutionPlan | None:
    """Returns the plan that a model's steps run under, if they do."""
    control = getattr(model.train_function, "control", None)
    return None if control is None else control.plan


def _fit_around() -> dict[str, Any]:
    try:
        return _compat_fit.fit_locals()
    except RuntimeError:
        # Somebody's own loop calls the callbacks.
        return {}
