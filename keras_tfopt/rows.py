"""Which rows of which batch a forward pass works on, for layers that ask."""

from collections.abc import Iterator
import contextlib
import threading
from typing import Any
from typing import NamedTuple


class RowPosition(NamedTuple):
    """Where the rows of a forward pass stand in training.

    Attributes:
        step: Integer scalar, or a variable that holds it. Optimizer updates
            before this one.
        first_row: Int32 scalar. Index of the first row in the whole batch, over
            all replicas and micro-batches.
    """

    step: Any
    first_row: Any


_current = threading.local()


@contextlib.contextmanager
def rows_at(position: RowPosition | None) -> Iterator[None]:
    """Lets layers know the position of their rows."""
    before = current_rows()
    _current.position = position
    try:
        yield
    finally:
        _current.position = before


def current_rows() -> RowPosition | None:
    """Returns the position, or `None` where nobody has told it."""
    return getattr(_current, "position", None)
