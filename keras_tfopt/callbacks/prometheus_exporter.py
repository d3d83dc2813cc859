"""A training's values for Prometheus."""

import os
from typing import Any

from keras_tfopt.telemetry.callback import TelemetryCallback
from keras_tfopt.telemetry.history import History
from keras_tfopt.telemetry.worker import worker_of


class PrometheusExporter(TelemetryCallback):
    """Serves what a training is doing to Prometheus.

    While `fit` runs, `http://127.0.0.1:9090/metrics` tells losses, steps and
    their duration, throughput, the share of waiting for data, memory, XLA, and
    every change of plan. `keras-tfopt dashboards` writes the configuration of
    Prometheus, alert rules and a dashboard for Grafana that go with it.

    What cannot be measured has no series, and one line in the log
    `keras_tfopt` says why. A port that is taken costs one warning, and training
    goes on. Several workers on one host, told by `TF_CONFIG`, take the ports
    that follow `port`, and their series have the label `worker`.

    Example:

    ```python
    import urllib.request

    import keras
    from keras_tfopt import AccumModel
    from keras_tfopt import callbacks

    exporter = callbacks.PrometheusExporter(port=0)

    def show(epoch, logs):
        url = f"http://127.0.0.1:{exporter.port}/metrics"
        assert b"keras_tfopt_steps_total" in urllib.request.urlopen(url).read()

    inputs = keras.Input((4,))
    model = AccumModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    x, y = keras.ops.ones((16, 4)), keras.ops.ones((16, 1))
    look = keras.callbacks.LambdaCallback(on_epoch_end=show)
    model.fit(x, y, callbacks=[exporter, look], verbose=0)
    ```

    Args:
        port: Integer. Port to listen at; 0 takes any that is free, `None` does
            not listen. Defaults to 9090.
        addr: String. Address to listen at. Nothing protects what is served:
            `"0.0.0.0"` shows it to the network. Defaults to `"127.0.0.1"`.
        textfile: String or path. File to write the values to as well, for jobs
            that end before they are asked; for the node exporter it must end in
            `.prom`. Defaults to `None`.
        interval_seconds: Float. Time between two writes of the file. Defaults
            to 15.

    Attributes:
        port: Integer. Port in use; the one asked for before `fit`, `None` where
            it was taken.

    Raises:
        ValueError: If a value is none of these.

    Reference:
        https://prometheus.io/docs/instrumenting/exposition_formats/
    """

    def __init__(
        self,
        port: int | None = 9090,
        addr: str = "127.0.0.1",
        textfile: str | os.PathLike | None = None,
        interval_seconds: float = 15.0,
    ) -> None:
        super().__init__(interval_seconds)
        is_port = isinstance(port, int) and not isinstance(port, bool)
        if port is not None and not (is_port and 0 <= port < 2**16):
            raise ValueError(
                "Invalid value for argument `port`. "
                f"Received: port={port!r}. Expected: an integer from 0 to "
                "65535, or None to serve nothing."
            )
        if port is None and textfile is None:
            raise ValueError(
                "Values must go somewhere. Received: port=None and "
                "textfile=None. Expected: one of them."
            )
        self.port = port
        self.addr = addr
        self.textfile = None if textfile is None else os.fspath(textfile)
        self._wanted_port = port
        self._registry: Any = None
        self._server: Any = None

    def open(self, history: History) -> None:
        """Begins to serve."""
        # Whoever does not use it need not have the library.
        from keras_tfopt.telemetry import metrics_server
        from keras_tfopt.telemetry.registry import registry_of

        worker = worker_of(os.environ.get("TF_CONFIG"))
        self._registry = registry_of(history, worker and worker[0])
        if self._wanted_port is None:
            return
        port = self._wanted_port
        if port and worker is not None:
            port += worker[1]
        self._server = metrics_server.MetricsServer(
            self._registry, self.addr, port
        )
        self.port = self._server.port

    def publish(self, history: History) -> None:
        """Writes the file, if there is one; the server reads by itself."""
        if self.textfile is not None:
            from keras_tfopt.telemetry.metrics_server import write_textfile

            write_textfile(self._registry, self.textfile)

    def close(self) -> None:
        """Gives the port back."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self.port = self._wanted_port
