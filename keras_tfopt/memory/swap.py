"""More variables than fit onto a device, by turns."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import concurrent.futures
import contextlib
import functools
import itertools
import logging
import os
import threading
import time
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt.memory.swap_budget import SwapBudget
from keras_tfopt.memory.swap_counters import SwapCounters
from keras_tfopt.memory.swap_counters import ThrashDetector
from keras_tfopt.memory.swap_group import SwapGroup
from keras_tfopt.memory.swap_group import check_disjoint
from keras_tfopt.memory.swap_group import unbuilt_bytes
from keras_tfopt.memory.swap_group import variables_getter
from keras_tfopt.memory.swap_tier import SwapTier
from keras_tfopt.memory.watched_models import WatchedModels

_logger = logging.getLogger("keras_tfopt")

_MIB = 2**20


class SwapManager:
    """Keeps groups of variables on the device while they are used.

    For models that train by turns, the slots of a tower that is frozen, copies
    of averaged weights, experts that rest. Groups that were used least recently
    leave for the host, or the disk, when others need their room; before a
    group is used, it comes back, bit for bit. A group is used

    - while a method of a model in it runs (`fit`, `train_on_batch`, ...);
    - inside of `with swap.using("name"):`, for functions of your own;
    - at once, when Python reads, assigns, saves or traces a variable in it.

    A `tf.function` of your own that was traced before knows nothing of this:
    call it inside of `using`. Saving and backups fetch what they read.

    Example:

    ```python
    import keras
    import numpy as np

    from keras_tfopt.memory import SwapManager

    def make_model():
        layers = [keras.Input((64,)), keras.layers.Dense(64)]
        model = keras.Sequential(layers)
        model.compile("adam", "mse")
        return model

    student, teacher = make_model(), make_model()
    x = np.ones((8, 64))
    with SwapManager(budget_bytes=60_000) as swap:
        swap.add("student", student)
        swap.add("teacher", teacher)
        for _ in range(2):
            student.fit(x, x, verbose=0)
            teacher.fit(x, x, verbose=0)
        assert swap.counters.swaps["out"] >= 3
    ```

    | Metric | Meaning |
    | --- | --- |
    | `memory_swaps_total{direction}` | groups moved |
    | `memory_swapped_bytes_total{direction}` | bytes moved |
    | `offload_hit_ratio` | uses of a group that was on the device |

    Args:
        budget_bytes: Integer. What all groups together may take of the device.
            A group in use stays, even if the budget is smaller.
        swap_threshold_bytes: Integer. What all tensors together may take of the
            device between steps before groups leave it. Needs a device whose
            allocator counts. Give one of the two.
        tier: `"host"` or `"disk"`. Where values are while they are away.
            Defaults to `"host"`.
        directory: String or path. Folder on the disk, for `tier="disk"`.
        max_swap_share: Float in (0, 1). Share of the time that swapping may
            take. Above it, the budget is raised where the device has room, or
            a line in the log says what is short. Defaults to 0.5.

    Attributes:
        counters: `SwapCounters`; its `metrics()` are those of the table.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        budget_bytes: int | None = None,
        *,
        swap_threshold_bytes: int | None = None,
        tier: str = "host",
        directory: str | os.PathLike | None = None,
        max_swap_share: float = 0.5,
    ) -> None:
        if not 0 < max_swap_share < 1:
            raise ValueError(
                "Invalid value for argument `max_swap_share`. Received: "
                f"max_swap_share={max_swap_share!r}. Expected: a number in "
                "(0, 1)."
            )
        self.counters = SwapCounters()
        self._tier = SwapTier(tier, directory)
        self._budget = SwapBudget(budget_bytes, swap_threshold_bytes)
        self._groups: dict[str, SwapGroup] = {}
        self._models = WatchedModels(self.using)
        self._uses = itertools.count(1)
        self._detector = ThrashDetector(max_swap_share)
        # Held by whoever lets groups leave, before the lock of any group.
        self._lock = threading.RLock()
        self._prefetcher: concurrent.futures.ThreadPoolExecutor | None = None
        self._is_paused = False

    def __enter__(self) -> "SwapManager":
        """Returns itself."""
        return self

    def __exit__(self, *exception: Any) -> None:
        """Brings everything back."""
        self.close()

    @property
    def resident(self) -> tuple[str, ...]:
        """Names of the groups on the device, least recently used first."""
        groups = sorted(self._groups.values(), key=lambda g: g.last_use)
        return tuple(group.name for group in groups if group.is_resident)

    @property
    def resident_bytes(self) -> int:
        """What the groups take of the device now."""
        return sum(g.bytes for g in self._groups.values() if g.takes_room)

    @property
    def budget_bytes(self) -> int | None:
        """What the groups may take now, if there is a budget."""
        return self._budget.budget_bytes

    def add(self, name: str, variables: keras.Model | Sequence[Any]) -> None:
        """Adds a group.

        Args:
            name: String.
            variables: A model, with its weights, slots and metrics, whose
                methods are watched from now on; or a sequence of variables. No
                variable may be in two groups.

        Raises:
            ValueError: If the name is taken, if the model has no weights yet,
                if a variable is in another group, or spread over replicas.
        """
        if name in self._groups:
            raise ValueError(
                "Invalid value for argument `name`. Received: "
                f"name={name!r}, which is taken. Expected: a new name."
            )
        group = SwapGroup(
            name,
            variables_getter(variables),
            self._tier.make_store,
            functools.partial(self.fetch, name),
        )
        with self._lock:
            self._make_room(unbuilt_bytes(variables))
            check_disjoint(group, self._groups.values())
            group.last_use = next(self._uses)
            self._groups[name] = group
            if isinstance(variables, keras.Model):
                self.watch(variables, name)
            self._make_room(0)

    def watch(self, model: keras.Model, *names: str) -> None:
        """Has groups on the device while a method of a model runs.

        Args:
            model: A Keras model.
            *names: String. Names of the groups that its steps use.
        """
        self._check_names(names)
        self._models.watch(model, names)

    @contextlib.contextmanager
    def using(self, *groups: str | keras.Model) -> Iterator[None]:
        """Has groups on the device inside of a block.

        Args:
            *groups: String or model. Names, or models that are watched.
        """
        used = [self._groups[name] for name in self._resolve(groups)]
        # Fetching one must not let another one leave.
        for group in used:
            group.pins += 1
        try:
            for group in used:
                self.fetch(group.name)
            yield
        finally:
            for group in used:
                group.pins -= 1

    def fetch(self, name: str) -> None:
        """Brings a group back now, and lets others leave for it.

        Args:
            name: String.
        """
        group = self._group(name)
        with tf.init_scope():
            # One that is on its way in counts as there.
            is_hit = group.is_resident or group.is_arriving
            with self._lock, group.lock:
                self._bring_back(group)
            if is_hit:
                self.counters.hits += 1
            else:
                self.counters.misses += 1
        group.last_use = next(self._uses)

    def evict(self, name: str) -> None:
        """Lets a group leave now.

        Args:
            name: String.

        Raises:
            ValueError: If the group is in use.
            OSError: If the disk is full; the group stays.
        """
        group = self._group(name)
        if group.pins:
            raise ValueError(
                f"A group in use stays. Received: {name!r}. Expected: a call "
                "outside of `using` and of the methods of its models."
            )
        with self._lock, tf.init_scope():
            self._evict(group)

    def prefetch(self, name: str) -> concurrent.futures.Future:
        """Brings a group back on another thread, as far as there is room.

        No other group leaves for it, so that nothing in use can be hit. Where
        the device has no room, what is on the disk is read into the host's
        memory.

        Args:
            name: String.

        Returns:
            `concurrent.futures.Future` of whether it is on the device.
        """
        group = self._group(name)
        if self._prefetcher is None:
            self._prefetcher = concurrent.futures.ThreadPoolExecutor(1)
        return self._prefetcher.submit(self._prefetch, group)

    @property
    def is_paused(self) -> bool:
        """Whether the device may not hold more than it does."""
        return self._is_paused

    def pause(self) -> None:
        """Brings back only what is used, for as much as leaves; any thread.

        Groups that are prefetched wait on the host, and for one that a step
        needs, others leave first, even if the budget has room for both.
        """
        self._is_paused = True

    def resume(self) -> None:
        """Goes by the budget again; from any thread."""
        self._is_paused = False

    def close(self) -> None:
        """Brings everything back and forgets all groups and models.

        Raises:
            tf.errors.ResourceExhaustedError: If not all of it fits onto the
                device. What does not is still in its group.
        """
        if self._prefetcher is not None:
            self._prefetcher.shutdown()
            self._prefetcher = None
        self._models.clear()
        with self._lock:
            for group in self._groups.values():
                self._restore(group)
            self._groups.clear()

    def _prefetch(self, group: SwapGroup) -> bool:
        with group.lock:
            if group.is_resident:
                return True
            if self._is_paused or self._excess(group.bytes) > 0:
                group.stage()
            else:
                group.is_arriving = True
                try:
                    self._restore(group)
                finally:
                    group.is_arriving = False
            return group.is_resident

    def _bring_back(self, group: SwapGroup) -> None:
        # Also one that is there may have become larger.
        self._make_room(0 if group.is_resident else group.bytes, group)
        try:
            self._restore(group)
        except tf.errors.ResourceExhaustedError:
            # The limits were too high for the device.
            for other in self._leavable(group):
                self._evict(other)
            self._restore(group)

    def _leavable(self, wanted: SwapGroup | None) -> list[SwapGroup]:
        """Returns groups that may leave, least recently used first."""
        return sorted(
            (
                group
                for group in self._groups.values()
                if group is not wanted and group.is_resident and not group.pins
            ),
            key=lambda group: group.last_use,
        )

    def _make_room(
        self, needed_bytes: int, wanted: SwapGroup | None = None
    ) -> None:
        """Lets the least recently used groups leave until there is room."""
        freed_bytes = 0
        for group in self._leavable(wanted):
            is_short = self._is_paused and freed_bytes < needed_bytes
            if self._excess(needed_bytes) <= 0 and not is_short:
                return
            freed_bytes += group.bytes
            self._evict(group)
        if wanted is not None and self._excess(needed_bytes) > 0:
            _logger.info(
                "Group '%s' comes back %.1f MiB above the limit: all others "
                "are away, or in use.",
                wanted.name,
                self._excess(needed_bytes) / _MIB,
            )

    def _excess(self, needed_bytes: int) -> int:
        return self._budget.excess(self.resident_bytes, needed_bytes)

    def _evict(self, group: SwapGroup) -> None:
        with group.lock:
            if group.is_resident:
                self._timed("out", group.evict)

    def _restore(self, group: SwapGroup) -> None:
        with group.lock:
            if not group.is_resident:
                self._timed("in", group.restore)

    def _timed(self, direction: str, move: Callable[[], int]) -> None:
        start = time.perf_counter()
        moved = move()
        end = time.perf_counter()
        self.counters.note(direction, moved, end - start)
        share = self._detector.note(end, end - start)
        if share is not None:
            self._detector.forget()
            total = sum(group.bytes for group in self._groups.values())
            self._budget.relax(share, moved, total)

    def _group(self, name: str) -> SwapGroup:
        self._check_names((name,))
        return self._groups[name]

    def _check_names(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._groups:
                raise ValueError(
                    f"Unknown group. Received: {name!r}. Expected: one of "
                    f"{list(self._groups)}; see `add`."
                )

    def _resolve(self, groups: Sequence[str | keras.Model]) -> list[str]:
        names: list[str] = []
        for group in groups:
            known = self._models.names_of(group)
            names += [group] if known is None else known
        self._check_names(names)
        return names
