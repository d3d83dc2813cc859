"""When a value that is too high is worth a warning, and when it is noise."""


class Alarm:
    """Warns when a value rises above a threshold, but not over and over.

    After a warning the value must fall clearly below the threshold before the
    next one, and some time must pass.

    Example:

    ```python
    from keras_tfopt.memory.alarm import Alarm

    alarm = Alarm(0.85, hysteresis=0.05, cooldown_seconds=60)
    values = [0.80, 0.90, 0.84, 0.95, 0.70, 0.90]
    times = [0, 10, 20, 30, 40, 100]
    warns = [alarm.update(*pair) for pair in zip(values, times)]
    assert warns == [False, True, False, False, False, True]
    ```

    Args:
        threshold: Float. The largest value that is all right.
        hysteresis: Float. How far the value must fall below the threshold.
        cooldown_seconds: Float. Least time between two warnings.
    """

    def __init__(
        self, threshold: float, hysteresis: float, cooldown_seconds: float
    ) -> None:
        self._threshold = threshold
        self._clear = threshold - hysteresis
        self._cooldown = cooldown_seconds
        self._is_armed = True
        self._last: float | None = None

    def update(self, value: float, now: float) -> bool:
        """Takes a value and returns whether to warn.

        Args:
            value: Float.
            now: Float. Seconds on any clock that does not go back.
        """
        if value <= self._clear:
            self._is_armed = True
        is_quiet = self._last is None or now - self._last >= self._cooldown
        if value <= self._threshold or not self._is_armed or not is_quiet:
            return False
        self._is_armed = False
        self._last = now
        return True
