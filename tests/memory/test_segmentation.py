"""Chosen spans are the best ones, by trying all."""

import dataclasses
import itertools

import numpy as np
import pytest

from keras_tfopt.memory.segmentation import Activation
from keras_tfopt.memory.segmentation import Profile
from keras_tfopt.memory.segmentation import even_spans
from keras_tfopt.memory.segmentation import fastest_within
from keras_tfopt.memory.segmentation import lowest_peak


def chain(*sizes):
    """Calls in a row, each of which keeps its result and passes it on."""
    activations = tuple(
        Activation(index, min(index + 1, len(sizes) - 1), True, size)
        for index, size in enumerate(sizes)
    )
    names = tuple(f"call_{index}" for index in range(len(sizes)))
    return Profile(names, activations, (1.0,) * len(sizes))


def any_profile(seed, count=6):
    """Calls whose results are kept or used at random, also much later."""
    random = np.random.default_rng(seed)
    activations = tuple(
        Activation(
            made,
            int(random.integers(made, count)),
            bool(random.integers(2)),
            int(random.integers(1, 20)),
        )
        for made in range(count)
        for _ in range(2)
    )
    costs = tuple(random.uniform(1, 9, count).tolist())
    return Profile(tuple("abcdefghij"[:count]), activations, costs)


def all_spans(count):
    """Yields every choice of spans."""

    def choices(start):
        if start == count:
            yield []
            return
        for rest in choices(start + 1):
            yield rest
        for stop in range(start + 1, count + 1):
            for rest in choices(stop):
                yield [(start, stop), *rest]

    return list(choices(0))


def cost(profile, spans):
    return sum(profile.cost(*span) for span in spans)


def test_nothing_computed_again_keeps_all():
    assert chain(3, 4, 5).peak([]) == 12


def test_what_is_computed_again_keeps_what_goes_on():
    profile = chain(1, 1, 1, 1, 1, 1)
    # What the first three pass on stays, and the rest.
    assert profile.peak([(0, 3)]) == 4
    assert profile.peak([(0, 2), (2, 4)]) == 4
    assert profile.peak([(0, 6)]) == 6


def test_a_tensor_that_passes_by_is_counted_once():
    names = ("a", "b", "c", "d")
    far = Activation(0, 3, True, 10)
    profile = Profile(names, (far, Activation(1, 2, True, 1)), (1.0,) * 4)
    assert profile.peak([(0, 1), (1, 2), (2, 3)]) == 11


@pytest.mark.parametrize("seed", range(8))
def test_lowest_peak_is_the_lowest_of_all(seed):
    profile = any_profile(seed)
    found = lowest_peak(profile)
    best = min(profile.peak(spans) for spans in all_spans(6))
    assert profile.peak(found) == best


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
def test_fastest_within_a_limit_is_the_cheapest_of_all(seed, share):
    profile = any_profile(seed)
    low, high = profile.peak(lowest_peak(profile)), profile.peak([])
    limit = int(low + share * (high - low))
    found = fastest_within(profile, limit)
    assert profile.peak(found) <= limit
    best = min(
        cost(profile, spans)
        for spans in all_spans(6)
        if profile.peak(spans) <= limit
    )
    assert cost(profile, found) == pytest.approx(best)


def test_fixed_calls_are_not_made_again():
    profile = dataclasses.replace(chain(*[1] * 9), fixed=frozenset({4}))
    spans = lowest_peak(profile)
    assert spans
    assert all(not start <= 4 < stop for start, stop in spans)


def test_what_fits_is_not_computed_again():
    profile = chain(3, 4, 5)
    assert fastest_within(profile, 12) == []
    assert fastest_within(profile, 4) is None


def test_uneven_sizes_beat_the_square_root():
    profile = chain(*itertools.chain(*[(40, 1, 1, 1)] * 9))
    even = profile.peak(even_spans(profile, 6))
    assert profile.peak(lowest_peak(profile)) < 0.7 * even


def test_even_spans_leave_the_last_part():
    assert even_spans(chain(*[1] * 9), 3) == [(0, 3), (3, 6)]
