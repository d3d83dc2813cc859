import numpy as np
import pytest

from keras_tfopt.telemetry.loss_tracking import RunningMean
from keras_tfopt.telemetry.loss_tracking import SpikeDetector


def test_losses_come_out_of_the_mean_of_uneven_batches():
    random = np.random.default_rng(0)
    losses, rows = random.uniform(1, 2, 50), random.integers(1, 40, 50)
    mean = RunningMean()
    for _ in range(2):
        mean.restart()
        found = [
            mean.advance(np.average(losses[:n], weights=rows[:n]), rows[n - 1])
            for n in range(1, 51)
        ]
        assert found == pytest.approx(losses)


def test_loss_is_unknown_after_a_gap_until_the_next_epoch():
    mean = RunningMean()
    mean.restart()
    assert mean.advance(1.0, 4) == 1.0
    assert mean.advance(1.0, None) is None
    assert mean.advance(1.0, 4) is None
    mean.restart(is_known=False)
    assert mean.advance(1.0, 4) is None
    mean.restart()
    assert mean.advance(3.0, 4) == 3.0


def test_spikes_are_found_after_the_warm_up_and_do_not_move_the_average():
    detector = SpikeDetector(factor=3.0, warmup_steps=5)
    assert not any(detector.is_spike(loss) for loss in (9, 1, 1, 1, 1))
    # The average is 2.6.
    assert not detector.is_spike(7.7)
    assert [detector.is_spike(loss) for loss in (30, 30, 2)] == [
        True,
        True,
        False,
    ]


def test_negative_losses_spike_upwards_only():
    detector = SpikeDetector(factor=3.0, warmup_steps=2)
    assert not any(detector.is_spike(loss) for loss in (-1, -1, -50))
    assert detector.is_spike(200.0)
