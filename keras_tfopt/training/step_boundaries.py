"""The moments between two steps of `fit`, and a start between two of them."""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import Protocol

from keras_tfopt import _compat_fit


class BoundaryListener(Protocol):
    """Is told where `fit` is; may raise, and may save or change any state."""

    def begin_epoch(self) -> int:
        """Called before the data of an epoch; returns its first step."""

    def resume(self, iterator: Any) -> None:
        """Called before the first step of an epoch that is resumed."""

    def before_step(self, step: int, iterator: Any) -> None:
        """Called before each step, when all callbacks have seen the last."""

    def after_step(self, steps: int) -> None:
        """Called after each step that `fit` asks another one for."""


def watch_boundaries(epoch_iterator: Any, listener: BoundaryListener) -> None:
    """Tells a listener of every step of the `fit` that is under way.

    Steps before the first one are not run, and their batches are not drawn.

    Args:
        epoch_iterator: What `fit` iterates over in each epoch.
        listener: `BoundaryListener`.
    """

    def wrap(stock: Callable[[], Iterator]) -> Callable[[], Iterator]:
        def enumerate_steps() -> Iterator:
            steps = epoch_iterator.steps_per_execution
            first = listener.begin_epoch()
            is_resumed = False
            for begin, end, iterator in stock():
                if begin < first:
                    continue
                if not is_resumed:
                    is_resumed = True
                    listener.resume(iterator)
                listener.before_step(begin, iterator)
                yield begin, end, iterator
                listener.after_step(steps)

        return enumerate_steps

    _compat_fit.replace_iteration(epoch_iterator, "enumerate", wrap)
