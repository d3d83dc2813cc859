"""Values over HTTP, and in a file."""

import logging
import os

from prometheus_client import CollectorRegistry
from prometheus_client import generate_latest
from prometheus_client import start_http_server

_logger = logging.getLogger("keras_tfopt")


class MetricsServer:
    """Serves the values of a registry at `/metrics`.

    Args:
        registry: `CollectorRegistry`.
        addr: String. Address to listen at.
        port: Integer. 0 takes any port that is free.

    Attributes:
        port: Integer, or `None` where the port was taken.
    """

    def __init__(
        self, registry: CollectorRegistry, addr: str, port: int
    ) -> None:
        self.port: int | None = None
        try:
            self._server, self._thread = start_http_server(port, addr, registry)
        except OSError as error:
            _logger.warning(
                "No metrics at http://%s:%d/metrics, and training goes on: "
                "%s. Another `port`, or 0 for any, may be free.",
                addr,
                port,
                error,
            )
            return
        self.port = self._server.server_port
        _logger.info(
            "Metrics are served at http://%s:%d/metrics.", addr, self.port
        )

    def close(self) -> None:
        """Gives the port back."""
        if self.port is None:
            return
        self.port = None
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def write_textfile(registry: CollectorRegistry, path: str) -> None:
    """Writes values to a file that is complete at each moment.

    Args:
        registry: `CollectorRegistry`.
        path: String. The collector of the node exporter reads `*.prom`.
    """
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "wb") as file:
        file.write(generate_latest(registry))
    os.replace(temporary, path)
