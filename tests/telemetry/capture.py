"""A publisher that keeps what it is shown."""

from keras_tfopt.telemetry.callback import TelemetryCallback


class Capture(TelemetryCallback):
    """Keeps records and the last values of a `fit`."""

    def __init__(self):
        super().__init__(interval_seconds=60.0)
        self.records = []
        self.calls = []

    def open(self, history):
        self.history = history
        self.calls.append("open")

    def handle(self, records):
        self.records += records

    def publish(self, history):
        self.last = history.latest
        self.calls.append("publish")

    def close(self):
        self.calls.append("close")

    def value(self, name, **labels):
        """Returns the last value of a metric, `None` without one."""
        return self.last.of(name).get(tuple(labels.items()))

    def of_kind(self, kind):
        return [r for r in self.records if isinstance(r, kind)]
