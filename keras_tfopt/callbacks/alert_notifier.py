"""Telling somebody when a training goes wrong."""

from collections.abc import Callable
import dataclasses
import logging
from typing import Any

from keras_tfopt.telemetry.alerts import AlertEngine
from keras_tfopt.telemetry.alerts import AlertEvent
from keras_tfopt.telemetry.alerts import with_thresholds
from keras_tfopt.telemetry.callback import TelemetryCallback
from keras_tfopt.telemetry.catalogue import all_alerts
from keras_tfopt.telemetry.history import History
from keras_tfopt.telemetry.webhook import Webhook

_logger = logging.getLogger("keras_tfopt")

_LEVELS = {
    "info": logging.INFO,
    "warning": logging.WARNING,
    "critical": logging.ERROR,
}


class AlertNotifier(TelemetryCallback):
    """Tells when something of a training passes its threshold.

    The same alerts as in the rules that `keras-tfopt dashboards` writes, judged
    in the process itself: memory that is almost full, leaks, recoveries from
    running out of memory, losses that spike or are not finite, steps that wait
    for data or for XLA, a throughput that drops. Each is told once when it
    begins and once when it is over: in the log `keras_tfopt`, and to a function
    or a webhook if given. Neither can stop or slow training.

    Example:

    ```python
    import keras
    from keras_tfopt import AccumModel
    from keras_tfopt import callbacks

    told = []
    notifier = callbacks.AlertNotifier(
        on_alert=told.append, thresholds={"InputBound": 0.5}
    )
    inputs = keras.Input((4,))
    model = AccumModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    x, y = keras.ops.ones((16, 4)), keras.ops.ones((16, 1))
    y = y * float("nan")
    model.fit(x, y, callbacks=[notifier], verbose=0)
    assert told[0].name == "KerasTfoptNonFinite"
    ```

    Args:
        on_alert: Callable of an `AlertEvent`, called in the sampler's thread,
            or `None`. Defaults to `None`.
        webhook_url: String or `None`. Where to post each event as JSON; what
            cannot be delivered in time is dropped. Defaults to `None`.
        thresholds: Dict of floats by name of the alert, or `None`. What to
            compare with instead of the defaults. Defaults to `None`.
        cooldown_seconds: Float. Time in which an alert that comes back is not
            told again. Defaults to 300.
        interval_seconds: Float. Time between two looks. Defaults to 5.

    Raises:
        ValueError: If a value is none of these.
    """

    def __init__(
        self,
        on_alert: Callable[[AlertEvent], Any] | None = None,
        webhook_url: str | None = None,
        thresholds: dict[str, float] | None = None,
        cooldown_seconds: float = 300.0,
        interval_seconds: float = 5.0,
    ) -> None:
        super().__init__(interval_seconds)
        if on_alert is not None and not callable(on_alert):
            raise ValueError(
                "Invalid value for argument `on_alert`. "
                f"Received: on_alert={on_alert!r}. Expected: a callable of an "
                "`AlertEvent`, or None."
            )
        if not cooldown_seconds >= 0:
            raise ValueError(
                "Invalid value for argument `cooldown_seconds`. "
                f"Received: cooldown_seconds={cooldown_seconds!r}. Expected: "
                "a number of at least 0."
            )
        self.on_alert = on_alert
        self._alerts = with_thresholds(all_alerts(), thresholds or {})
        self._engine = AlertEngine(
            self._alerts, cooldown_seconds=cooldown_seconds
        )
        self._webhook = None if webhook_url is None else Webhook(webhook_url)

    def publish(self, history: History) -> None:
        """Judges, and tells."""
        for event in self._engine.judge(history):
            self._log(event)
            if self._webhook is not None:
                self._webhook.post(dataclasses.asdict(event))
            self._call(event)

    def close(self) -> None:
        """Delivers what waits."""
        if self._webhook is not None:
            self._webhook.close()

    def _call(self, event: AlertEvent) -> None:
        if self.on_alert is None:
            return
        try:
            self.on_alert(event)
        except Exception as error:
            _logger.warning(
                "`on_alert` fails, and training goes on: %s: %s",
                type(error).__name__,
                error,
            )

    def _log(self, event: AlertEvent) -> None:
        where = " ".join(event.labels.values())
        if event.state == "resolved":
            _logger.info("%s %s is over.", event.name, where)
            return
        _logger.log(
            _LEVELS[event.severity],
            "%s %s at step %d: %.4g, threshold %.4g. %s",
            event.name,
            where,
            event.step,
            event.value,
            event.threshold,
            event.summary,
        )
