"""The loss of a step, out of a running mean, and its spikes."""

_DECAY = 0.98
_SPIKE_FACTOR = 3.0
_WARMUP_STEPS = 20


class RunningMean:
    """Takes the loss of single steps out of Keras' mean over the epoch.

    Keras reports the mean of all rows since the epoch began. The difference of
    two such sums is the loss of what came in between.

    Attributes:
        is_finite: Boolean. Whether the last mean was neither NaN nor infinite.
    """

    def __init__(self) -> None:
        self._mean = 0.0
        self._rows = 0
        self._is_known = True
        self.is_finite = True

    def restart(self, is_known: bool = True) -> None:
        """Begins an epoch.

        Args:
            is_known: Boolean. Whether the mean is that of no rows yet.
        """
        self._mean, self._rows = 0.0, 0
        self._is_known = is_known
        self.is_finite = True

    def lose(self, is_finite: bool = True) -> None:
        """Notes that later losses of the epoch cannot be known.

        Args:
            is_finite: Boolean. Whether the mean is finite.
        """
        self._is_known = False
        self.is_finite = is_finite

    def advance(self, mean: float, rows: int | None) -> float | None:
        """Takes the next mean, which is finite.

        Args:
            mean: Float. As Keras reports it.
            rows: Integer. Rows since the last mean, or `None` if not known.

        Returns:
            Float. The loss of those rows, or `None` where it cannot be known.
        """
        if not rows:
            self.lose()
        if not self._is_known or not rows:
            return None
        before = self._mean * self._rows
        self._rows += rows
        self._mean = mean
        return (mean * self._rows - before) / rows


class SpikeDetector:
    """Compares each loss with the moving average of those before it.

    Args:
        factor: Float. A spike is above the average by so many times its size.
        warmup_steps: Integer. Losses before the first spike is looked for.
    """

    def __init__(
        self,
        factor: float = _SPIKE_FACTOR,
        warmup_steps: int = _WARMUP_STEPS,
    ) -> None:
        self._factor = factor
        self._warmup_steps = warmup_steps
        self._average = 0.0
        self._steps = 0

    def is_spike(self, loss: float) -> bool:
        """Judges a finite loss; one that is a spike does not move the average.

        Args:
            loss: Float.
        """
        if self._steps >= self._warmup_steps and loss > (
            self._average + (self._factor - 1.0) * abs(self._average)
        ):
            return True
        self._steps += 1
        # The mean of all, until there are enough of them.
        weight = max(1.0 - _DECAY, 1.0 / self._steps)
        self._average += weight * (loss - self._average)
        return False
