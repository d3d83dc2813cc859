"""An alarm warns once per breach, and not about noise."""

import pytest

from keras_tfopt.memory.alarm import Alarm


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.5, 0.8, 0.5], []),
        # At the threshold is not above it.
        ([0.85, 0.85], []),
        ([0.9, 0.95, 1.0], [0]),
        # Around the threshold.
        ([0.9, 0.84, 0.86, 0.83, 0.9], [0]),
        # Clearly below, and again, but too soon after the first.
        ([0.9, 0.5, 0.9, 0.9], [0]),
        ([0.9, 0.5, 0.9, 0.9, 0.9, 0.9], [0, 5]),
        ([0.9, 0.5, 0.5, 0.5, 0.5, 0.9, 0.9], [0, 5]),
        ([0.9] * 20, [0]),
    ],
)
def test_warns(values, expected):
    alarm = Alarm(0.85, hysteresis=0.05, cooldown_seconds=50)
    warned = [
        index
        for index, value in enumerate(values)
        if alarm.update(value, 10.0 * index)
    ]
    assert warned == expected


def test_without_hysteresis_and_cooldown_each_breach_warns():
    alarm = Alarm(0.85, hysteresis=0, cooldown_seconds=0)
    values = [0.9, 0.9, 0.85, 0.9]
    warned = [alarm.update(value, 0.0) for value in values]
    assert warned == [True, False, False, True]
