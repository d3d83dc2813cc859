"""Which calls of a model to compute again, given what each keeps in memory."""

from collections.abc import Sequence
import dataclasses
import functools
from typing import TypeAlias

# Calls from `start` up to `stop`, which are computed again together.
Span: TypeAlias = tuple[int, int]

# Choices of equal worth that are followed at once from a call on.
_MAX_CHOICES = 24

# Steps by which the lowest peak is approached, each halving the interval.
_BISECTIONS = 24


@dataclasses.dataclass(frozen=True)
class Activation:
    """A tensor of a forward pass.

    Attributes:
        made: Integer. The call that makes it.
        last_use: Integer. The last call that takes it; at least `made`.
        is_kept: Boolean. Whether the backward pass needs it.
        size: Integer. Its bytes.
    """

    made: int
    last_use: int
    is_kept: bool
    size: int


@dataclasses.dataclass(frozen=True)
class Profile:
    """What the calls of a forward pass keep in memory, and what they cost.

    Attributes:
        names: Tuple of the names of what is called, in order.
        activations: Tuple of `Activation`.
        costs: Tuple of floats. What each call costs, in any unit.
        fixed: Set of the calls that must not be made again. Defaults to none.
    """

    names: tuple[str, ...]
    activations: tuple[Activation, ...]
    costs: tuple[float, ...]
    fixed: frozenset[int] = frozenset()

    def kept(self, start: int, stop: int) -> int:
        """Bytes that calls keep for their own backward pass."""
        return self._kept_sums[stop] - self._kept_sums[start]

    def held(self, start: int, stop: int) -> int:
        """Bytes that calls keep for others, if they are computed again."""
        return self._held[start][stop]

    def held_by(self, call: int) -> int:
        """Bytes that a call keeps in all, if it is not computed again."""
        return sum(
            one.size
            for one in self._made_by[call]
            if one.is_kept or one.last_use > call
        )

    def cost(self, start: int, stop: int) -> float:
        """What it costs to compute calls again."""
        return sum(self.costs[start:stop])

    def peak(self, spans: Sequence[Span]) -> int:
        """Bytes of activations at the peak, if spans are computed again.

        Temporaries of single operations and gradients are not in it.
        """
        held = peak = position = 0
        for start, stop in spans:
            held += sum(map(self.held_by, range(position, start)))
            peak = max(peak, held + self.kept(start, stop))
            held += self.held(start, stop)
            position = stop
        held += sum(map(self.held_by, range(position, len(self.names))))
        return max(peak, held)

    @functools.cached_property
    def _made_by(self) -> list[list[Activation]]:
        made: list[list[Activation]] = [[] for _ in self.names]
        for activation in self.activations:
            made[activation.made].append(activation)
        return made

    @functools.cached_property
    def _kept_sums(self) -> list[int]:
        sums = [0]
        for made in self._made_by:
            sums.append(sums[-1] + sum(a.size for a in made if a.is_kept))
        return sums

    @functools.cached_property
    def _held(self) -> list[list[int]]:
        """For each start and stop, what is made there and used after."""
        count = len(self.names)
        table = [[0] * (count + 1) for _ in range(count)]
        for start in range(count):
            # Bytes by the call behind which they are no longer held.
            until = [0] * (count + 1)
            held = 0
            for call in range(start, count):
                for one in self._made_by[call]:
                    held += one.size
                    until[one.last_use] += one.size
                held -= until[call]
                table[start][call + 1] = held
        return table


def lowest_peak(profile: Profile) -> list[Span]:
    """Returns the spans to compute again for the lowest peak.

    Args:
        profile: `Profile`.
    """
    high = profile.peak([])
    low, best = 0, _spans_within(profile, high)
    for _ in range(_BISECTIONS):
        middle = (low + high) // 2
        found = _spans_within(profile, middle)
        if found is None:
            low = middle
        else:
            high, best = middle, found
    return best or []


def fastest_within(profile: Profile, limit: int) -> list[Span] | None:
    """Returns the cheapest spans to compute again under a limit.

    Args:
        profile: `Profile`.
        limit: Integer. Bytes of activations.

    Returns:
        List of spans, none if all fits as it is; `None` if nothing fits.
    """
    return [] if profile.peak([]) <= limit else _spans_within(profile, limit)


def even_spans(profile: Profile, count: int) -> list[Span]:
    """Returns spans of about the same number of calls, but for the last.

    Args:
        profile: `Profile`.
        count: Integer. Number of parts; the square root of the number of calls
            is the textbook's choice.
    """
    calls = len(profile.names)
    cuts = [round(index * calls / count) for index in range(count)]
    return list(zip(cuts[:-1], cuts[1:], strict=True))


@dataclasses.dataclass(frozen=True)
class _Choice:
    """What was chosen for the calls so far.

    Attributes:
        held: Integer. Bytes that stay.
        cost: Float. What is computed again.
        spans: Tuple of spans.
    """

    held: int
    cost: float
    spans: tuple[Span, ...] = ()


def _spans_within(profile: Profile, limit: int) -> list[Span] | None:
    """Returns the cheapest spans under a limit, by dynamic programming.

    Followed from call to call are all choices of which none holds less for
    less.

    Args:
        profile: `Profile`.
        limit: Integer. Bytes of activations.
    """
    count = len(profile.names)
    choices: list[list[_Choice]] = [[] for _ in range(count + 1)]
    choices[0] = [_Choice(0, 0.0)]
    for start in range(count):
        choices[start] = _undominated(choices[start])
        for choice in choices[start]:
            held = choice.held + profile.held_by(start)
            if held <= limit:
                choices[start + 1].append(
                    dataclasses.replace(choice, held=held)
                )
            cost = choice.cost
            for stop in range(start + 1, count + 1):
                is_fixed = stop - 1 in profile.fixed
                if is_fixed or choice.held + profile.kept(start, stop) > limit:
                    break
                cost += profile.costs[stop - 1]
                held = choice.held + profile.held(start, stop)
                if held <= limit:
                    spans = (*choice.spans, (start, stop))
                    choices[stop].append(_Choice(held, cost, spans))
    if not choices[count]:
        return None
    best = min(choices[count], key=lambda choice: (choice.cost, choice.held))
    return list(best.spans)


def _undominated(choices: list[_Choice]) -> list[_Choice]:
    """Returns choices of which none holds less for less, if need be fewer."""
    found: list[_Choice] = []
    for choice in sorted(choices, key=lambda one: (one.held, one.cost)):
        if not found or choice.cost < found[-1].cost:
            found.append(choice)
    if len(found) <= _MAX_CHOICES:
        return found
    stride = (len(found) - 1) / (_MAX_CHOICES - 1)
    # The one that holds least is among them: it may be the only way on.
    return [found[round(i * stride)] for i in range(_MAX_CHOICES)]
