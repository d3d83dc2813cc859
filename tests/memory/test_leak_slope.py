"""Growth that lasts is told from everything else that memory does."""

import numpy as np
import pytest

from keras_tfopt.memory.leak_slope import leak_slope

MIB = 2**20
EPOCHS = (5, 6, 8, 12, 20, 40)


def noise(epochs, size, seed):
    return np.random.default_rng(seed).normal(0, size, epochs)


def steady(epochs, slope):
    return 1000 * MIB + slope * np.arange(epochs)


@pytest.mark.parametrize("epochs", EPOCHS)
@pytest.mark.parametrize("seed", range(5))
def test_steady_growth_is_found_with_its_slope(epochs, seed):
    sizes = steady(epochs, 8 * MIB) + noise(epochs, MIB / 2, seed)
    found = leak_slope(list(sizes))
    assert found.is_growing
    assert found.bytes_per_epoch == pytest.approx(8 * MIB, rel=0.1)


def test_single_epochs_far_off_change_little():
    sizes = steady(20, 8 * MIB)
    sizes[[4, 9, 15]] += 5000 * MIB
    found = leak_slope(list(sizes))
    assert found.is_growing
    assert found.bytes_per_epoch == pytest.approx(8 * MIB, rel=0.1)


def test_growth_in_regular_steps_is_growth():
    # An allocator that takes 32 MiB from the system every fourth epoch.
    sizes = [32 * MIB * (epoch // 4) for epoch in range(24)]
    found = leak_slope(sizes)
    assert found.is_growing
    assert found.bytes_per_epoch == pytest.approx(8 * MIB, rel=0.1)


def alarms(sizes):
    """Whether there is an alarm after any epoch."""
    return any(
        (found := leak_slope(list(sizes[:count]))) and found.is_growing
        for count in range(1, len(sizes) + 1)
    )


@pytest.mark.parametrize(
    "sizes",
    [
        [7 * MIB] * 20,
        # A shorter warm-up than the epochs that are skipped is not seen here;
        # a longer one ends.
        [0, 40, 50, 50, 50, 50, 50, 50],
        [0, 40, 60, 60, 60, 61, 60, 60, 61],
        # Something is loaded, and stays.
        [10] * 3 + [90] * 9,
        [10] * 6 + [90] * 6,
        [10] * 4 + [50] * 4 + [90] * 4,
        [10, 10, 90, 90, 90],
        # Garbage that is collected every few epochs.
        [10, 20, 30, 10, 20, 30, 10, 20, 30, 10, 20],
        [10, 20, 30, 40] * 4,
        [40, 30, 20, 10] * 4,
        # Shrinking.
        list(range(100, 0, -5)),
    ],
    ids=str,
)
def test_no_alarm(sizes):
    assert not alarms([size * MIB for size in sizes])


def test_noise_is_rarely_taken_for_growth():
    # Five epochs are few: in one of a hundred runs they rise by chance alone.
    for epochs, allowed in ((5, 0.02), (8, 0.02), (30, 0.02)):
        found = [
            leak_slope(list(noise(epochs, MIB, seed))).is_growing
            for seed in range(400)
        ]
        assert np.mean(found) <= allowed


def test_too_few_epochs_say_nothing():
    assert leak_slope([1, 2, 3, 4]) is None
    assert leak_slope([]) is None
    assert leak_slope([1, 2, 3], min_points=3).bytes_per_epoch == 1
