"""Prometheus' configuration: what to scrape, and when to alert."""

from typing import Any

from keras_tfopt.telemetry.catalogue import all_alerts
from keras_tfopt.telemetry.metric import Alert

RULES_FILE = "alerts.yml"
JOB = "keras_tfopt"


def alert_rules() -> dict[str, Any]:
    """Returns the rules of all alerts, in Prometheus' form."""
    return {
        "groups": [
            {"name": JOB, "rules": [_rule(alert) for alert in all_alerts()]}
        ]
    }


def scrape_config(targets: list[str], interval_seconds: int) -> dict[str, Any]:
    """Returns the configuration of a Prometheus server.

    Args:
        targets: List of strings, `"host:port"` of the exporters.
        interval_seconds: Integer. Time between two scrapes.
    """
    return {
        "global": {
            "scrape_interval": f"{interval_seconds}s",
            "evaluation_interval": f"{interval_seconds}s",
        },
        "rule_files": [RULES_FILE],
        "scrape_configs": [
            {"job_name": JOB, "static_configs": [{"targets": targets}]}
        ],
    }


def _rule(alert: Alert) -> dict[str, Any]:
    rule: dict[str, Any] = {"alert": alert.name, "expr": alert.promql}
    if alert.for_seconds:
        rule["for"] = f"{alert.for_seconds}s"
    rule["labels"] = {"severity": alert.severity}
    rule["annotations"] = {
        "summary": alert.summary,
        "description": "{{ $labels.instance }}: {{ $value | humanize }}",
    }
    return rule
