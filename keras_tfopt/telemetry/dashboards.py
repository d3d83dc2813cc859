"""Prometheus and Grafana, ready to start."""

import json
import os
import pathlib
from typing import Any

from keras_tfopt.telemetry.grafana import DATASOURCE_UID
from keras_tfopt.telemetry.grafana import dashboard
from keras_tfopt.telemetry.rules import RULES_FILE
from keras_tfopt.telemetry.rules import alert_rules
from keras_tfopt.telemetry.rules import scrape_config

# The exporter itself takes 9090.
PROMETHEUS_ADDRESS = "127.0.0.1:9091"
_GRAFANA_DASHBOARDS = "/var/lib/grafana/dashboards"


def write_dashboards(
    directory: str | os.PathLike,
    targets: tuple[str, ...] = ("127.0.0.1:9090",),
    interval_seconds: int = 5,
) -> list[pathlib.Path]:
    """Writes configurations of Prometheus and Grafana into a folder.

    `docker compose up` in it starts both. Alert rules and dashboard are made of
    the same catalogue as the values that `callbacks.PrometheusExporter` serves.

    Example:

    ```python
    from keras_tfopt.telemetry.dashboards import write_dashboards

    paths = write_dashboards("dashboards")
    assert "alerts.yml" in [path.name for path in paths]
    ```

    Args:
        directory: String or path. It is made if need be; files of the same
            names are replaced.
        targets: Tuple of strings, `"host:port"` of the exporters. Defaults to
            the exporter's default on this host.
        interval_seconds: Integer. Time between two scrapes. Defaults to 5.

    Returns:
        List of the paths of the files.
    """
    import yaml

    files: dict[str, Any] = {
        "compose.yml": _compose(),
        "prometheus/prometheus.yml": scrape_config(
            list(targets), interval_seconds
        ),
        f"prometheus/{RULES_FILE}": alert_rules(),
        "grafana/provisioning/datasources/prometheus.yml": _datasource(),
        "grafana/provisioning/dashboards/keras_tfopt.yml": _provider(),
        "grafana/dashboards/keras_tfopt.json": dashboard(),
    }
    paths = []
    for name, content in files.items():
        path = pathlib.Path(directory, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".json":
            text = json.dumps(content, indent=1) + "\n"
        else:
            text = yaml.safe_dump(content, sort_keys=False, width=78)
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def _compose() -> dict[str, Any]:
    # On the host's network, since the exporter listens to the host alone.
    return {
        "services": {
            "prometheus": {
                "image": "prom/prometheus:v2.55.1",
                "network_mode": "host",
                "command": [
                    "--config.file=/etc/prometheus/prometheus.yml",
                    f"--web.listen-address={PROMETHEUS_ADDRESS}",
                ],
                "volumes": ["./prometheus:/etc/prometheus:ro"],
            },
            "grafana": {
                "image": "grafana/grafana:11.3.0",
                "network_mode": "host",
                "environment": {
                    "GF_SERVER_HTTP_ADDR": "127.0.0.1",
                    "GF_AUTH_ANONYMOUS_ENABLED": "true",
                },
                "volumes": [
                    "./grafana/provisioning:/etc/grafana/provisioning:ro",
                    f"./grafana/dashboards:{_GRAFANA_DASHBOARDS}:ro",
                ],
            },
        }
    }


def _datasource() -> dict[str, Any]:
    return {
        "apiVersion": 1,
        "datasources": [
            {
                "name": "keras_tfopt",
                "uid": DATASOURCE_UID,
                "type": "prometheus",
                "access": "proxy",
                "url": f"http://{PROMETHEUS_ADDRESS}",
                "isDefault": True,
            }
        ],
    }


def _provider() -> dict[str, Any]:
    return {
        "apiVersion": 1,
        "providers": [
            {
                "name": "keras_tfopt",
                "type": "file",
                "options": {"path": _GRAFANA_DASHBOARDS},
            }
        ],
    }
