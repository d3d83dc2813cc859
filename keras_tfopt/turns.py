"""The order in which things are measured beside each other."""

from collections.abc import Iterator
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


def by_turns(items: Sequence[Item], rounds: int) -> Iterator[Item]:
    """Yields items round after round, so that what slows one slows all.

    Each round goes the other way, so that none always follows the same.

    Args:
        items: Sequence.
        rounds: Integer. How often each comes.
    """
    for index in range(rounds):
        yield from items[:: 1 if index % 2 else -1]
