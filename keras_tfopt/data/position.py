"""The position of `fit` in its data, and the way back to it."""

from collections.abc import Callable
from collections.abc import Iterator
import logging
import random
import time
from typing import Any

import tensorflow as tf

from keras_tfopt import _compat_fit
from keras_tfopt.data.way_back import REPLAY
from keras_tfopt.data.way_back import SKIP
from keras_tfopt.data.way_back import STATE
from keras_tfopt.data.way_back import WayBack
from keras_tfopt.data.way_back import initial_way
from keras_tfopt.data.way_back import way_without_state

_logger = logging.getLogger("keras_tfopt")

# An iterator's state is taken between two steps, while training waits.
MAX_STATE_BYTES = 64 * 2**20
MAX_STATE_SECONDS = 2.0


def _same(value: Any) -> Any:
    return value


class DataPosition:
    """Counts what `fit` has drawn, and draws it again after a restart.

    Args:
        epoch_iterator: What `fit` iterates over in each epoch.
        strict: Boolean. Whether to refuse data whose order after a restart
            cannot be known to be the same.
        share: Callable that returns the chief's numbers on all workers.
            Defaults to one worker's own.
        distribute: Callable that gives each worker its part of a dataset.
            Defaults to one worker's all.
    """

    def __init__(
        self,
        epoch_iterator: Any,
        strict: bool,
        share: Callable[[list[int]], list[int]] = _same,
        distribute: Callable[[Any], Any] = _same,
    ) -> None:
        self._epoch_iterator = epoch_iterator
        self._strict = strict
        self._dataset = _compat_fit.py_dataset(epoch_iterator)
        # Batches drawn from each iterator made so far; the last is in use.
        self._drawn: list[int] = []
        self._epoch_start: dict[str, Any] = {}
        self._is_said = False
        self._distribute = distribute
        way = initial_way(epoch_iterator)
        (seed,) = share([way.order_seed or 0])
        self._way = way.with_order_seed(seed)
        _compat_fit.replace_iteration(epoch_iterator, "iterate", self._count)

    def probe(self, iterator: Any) -> None:
        """Finds out how to come back, before the first step.

        Args:
            iterator: The iterator that the step is going to draw from.

        Raises:
            ValueError: If `strict` and the way back is not exact.
        """
        if self._way.name == STATE:
            self._state_of(iterator)
        self._say()

    def begin_epoch(self, saved: dict[str, Any] | None) -> None:
        """Prepares an epoch before its iterator is made.

        Args:
            saved: What `capture` returned, to come back to in this epoch, or
                `None`.
        """
        if saved is not None:
            self._return_to_epoch(saved)
        if self._dataset is not None:
            # It shuffles by Python's generator once the epoch begins.
            self._epoch_start = {"random": random.getstate()}
            if hasattr(self._dataset, "get_state"):
                self._epoch_start["dataset"] = self._dataset.get_state()

    def advance(self, batches: int) -> None:
        """Notes that batches were drawn from the iterator in use."""
        self._drawn[-1] += batches

    def capture(self, iterator: Any) -> tuple[dict[str, Any], bytes | None]:
        """Returns the position, and the iterator's state if it has one.

        Args:
            iterator: The iterator in use.
        """
        num_batches, steps_seen = _compat_fit.progress_of(self._epoch_iterator)
        state = self._state_of(iterator) if self._way.name == STATE else None
        way = STATE if state is not None else self._way.name
        if state is not None and self._misses_shuffles(state):
            ended = way_without_state(self._epoch_iterator, "a shuffle ended")
            way, state = ended.name, None
        position = {
            "way": way,
            "drawn": list(self._drawn),
            "num_batches": num_batches,
            "steps_seen": steps_seen,
            "epoch_start": self._epoch_start,
            "order_seed": self._way.order_seed,
            "seed": _compat_fit.global_seed(),
        }
        return position, state

    def seek(
        self, iterator: Any, saved: dict[str, Any], state: bytes | None
    ) -> None:
        """Brings a fresh iterator to a saved position.

        Args:
            iterator: The iterator that the first step is going to draw from.
            saved: What `capture` returned.
            state: The iterator's state, or `None`.
        """
        if state is not None:
            _compat_fit.set_iterator_state(iterator, state)
        else:
            self._draw(iterator, saved["drawn"][-1])
        self._drawn = list(saved["drawn"])
        _compat_fit.set_progress(
            self._epoch_iterator, saved["num_batches"], saved["steps_seen"]
        )

    def _return_to_epoch(self, saved: dict[str, Any]) -> None:
        seed = _compat_fit.global_seed()
        if saved["seed"] != seed:
            self._refuse(
                f"the global seed was {saved['seed']} and is {seed} now, so "
                "that the data may come in another order"
            )
        _, steps_seen = _compat_fit.progress_of(self._epoch_iterator)
        _compat_fit.set_progress(
            self._epoch_iterator, saved["num_batches"], steps_seen
        )
        self._way = self._way.with_order_seed(saved["order_seed"])
        start = saved["epoch_start"]
        if self._dataset is not None and start:
            random.setstate(start["random"])
            if "dataset" in start:
                self._dataset.set_state(start["dataset"])
        elif saved["way"] in (SKIP, REPLAY):
            # Every iterator moves the seeds of the next one on.
            for drawn in saved["drawn"][len(self._drawn) : -1]:
                iterator = iter(self._iterable())
                if saved["way"] == REPLAY:
                    self._draw(iterator, drawn)

    def _draw(self, iterator: Iterator, batches: int) -> None:
        """Draws batches and throws them away."""
        said = time.monotonic()
        for index in range(batches):
            try:
                next(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                return
            if time.monotonic() - said > 10:
                said = time.monotonic()
                _logger.warning(
                    "Skipping to the saved position in the data: %d of %d "
                    "batches.",
                    index + 1,
                    batches,
                )

    def _state_of(self, iterator: Any) -> bytes | None:
        """Returns the state of an iterator, or decides for another way."""
        start = time.perf_counter()
        try:
            state = _compat_fit.iterator_state(iterator)
        except (tf.errors.OpError, AttributeError) as error:
            self._turn_to(way_without_state(self._epoch_iterator, error))
            return None
        seconds = time.perf_counter() - start
        if len(state) > MAX_STATE_BYTES or seconds > MAX_STATE_SECONDS:
            reason = (
                f"the iterator's state takes {len(state) / 2**20:.0f} MiB and "
                f"{seconds:.1f} s"
            )
            self._turn_to(way_without_state(self._epoch_iterator, reason))
        return state

    def _misses_shuffles(self, state: bytes) -> bool:
        """Whether a state would not move the seeds of later epochs on."""
        dataset = _compat_fit.dataset_of(self._epoch_iterator)
        if not isinstance(dataset, tf.data.Dataset):
            return False
        stages = _compat_fit.dataset_stages(dataset)
        return _compat_fit.shuffles_in(state) < stages.count("Shuffle")

    def _turn_to(self, way: WayBack) -> None:
        self._way = way
        self._is_said = False
        self._say()

    def _say(self) -> None:
        if self._is_said:
            return
        self._is_said = True
        _logger.info("After a restart, %s.", self._way)
        if self._way.doubt:
            self._refuse(self._way.doubt)

    def _refuse(self, doubt: str) -> None:
        if self._strict:
            raise ValueError(
                "The position in the data cannot be restored exactly. "
                f"Received: strict=True, but {doubt}. Expected: data in the "
                "same order after a restart. Change the data, or set "
                "`strict=False`."
            )
        _logger.warning("Not exact after a restart: %s.", doubt)

    def _count(self, iterable: Any) -> Any:
        """Counts how often an iterator is made."""

        def counted() -> Any:
            self._drawn.append(0)
            number = len(self._drawn) - 1
            return self._way.iterable(iterable, number, self._distribute)

        self._iterable = counted
        return counted
