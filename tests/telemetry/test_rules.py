import json

import yaml

from keras_tfopt.telemetry.catalogue import all_alerts
from keras_tfopt.telemetry.catalogue import all_curves
from keras_tfopt.telemetry.dashboards import write_dashboards
from keras_tfopt.telemetry.grafana import dashboard
from tests.telemetry import prometheus_tools

DEVICE = '{device="GPU:0"}'
REASON = '{reason="x"}'

# What lets each alert fire within the hour, one value a minute, and what does
# not quite.
BAD = {
    "LossSpikes": {"loss_spikes_total": "0+1x60"},
    "NonFinite": {"nonfinite_steps_total": "0x54 1x6"},
    "ThroughputDrop": {"samples_total": "0+600x45 27100+100x15"},
    "InputBound": {"data_wait_ratio": "0.2x60"},
    "Stalled": {"last_step_timestamp_seconds": "60x60"},
    "OutOfMemory": {"oom_recoveries_total": "0x55 1x5"},
    "GradientSpike": {"gradient_norm": "1x59 500"},
    "VanishingGradients": {"gradient_vanishing_ratio": "0.6x60"},
    "CommunicationBound": {'communication_time_ratio{source="xprof"}': "1x60"},
    "CommunicationDominates": {
        'communication_time_ratio{source="step"}': "0.31x60"
    },
    "Straggler": {"load_imbalance_ratio": "0.11x60"},
    "BackupOld": {"backup_age_seconds": "0+61x60"},
    "TelemetryCost": {"telemetry_overhead_seconds_total": "0+1x60"},
    "MemoryAlmostFull": {f"memory_utilization_ratio{DEVICE}": "0.9x60"},
    "MemoryFull": {f"memory_utilization_ratio{DEVICE}": "0.91x60"},
    "MemoryFragmented": {
        f"memory_fragmentation_ratio{DEVICE}": "0.3x60",
        f"memory_utilization_ratio{DEVICE}": "0.6x60",
    },
    "MemoryLeak": {
        f"memory_leak_bytes_per_epoch{DEVICE}": "6x60",
        f"memory_limit_bytes{DEVICE}": "1000x60",
    },
    "Swapping": {'memory_swaps_total{direction="out"}': "0+700x60"},
    "XLAFallback": {
        'xla_compilations_total{result="success"}': "9x60",
        'xla_compilations_total{result="fallback"}': "1x60",
    },
    "XLACompileTime": {
        "xla_compile_time_ratio": "0.06x60",
        "steps_total": "201x60",
    },
}
GOOD = {
    "LossSpikes": {"loss_spikes_total": "7x60"},
    "NonFinite": {"nonfinite_steps_total": "2x60"},
    "ThroughputDrop": {"samples_total": "0+600x60"},
    "InputBound": {"data_wait_ratio": "0.09x60"},
    "Stalled": {"last_step_timestamp_seconds": "0+60x60"},
    "OutOfMemory": {"oom_recoveries_total": "1x60"},
    "GradientSpike": {"gradient_norm": "1x58 2x1"},
    "VanishingGradients": {"gradient_vanishing_ratio": "0.4x60"},
    "CommunicationBound": {'communication_time_ratio{source="x"}': "0.1x60"},
    "CommunicationDominates": {
        'communication_time_ratio{source="step"}': "0.29x60"
    },
    "Straggler": {"load_imbalance_ratio": "0.09x60"},
    "BackupOld": {"backup_age_seconds": "3600x60"},
    "TelemetryCost": {"telemetry_overhead_seconds_total": "0+0.5x60"},
    "MemoryAlmostFull": {f"memory_utilization_ratio{DEVICE}": "0.8x60"},
    "MemoryFull": {f"memory_utilization_ratio{DEVICE}": "0.9x60"},
    "MemoryFragmented": {
        f"memory_fragmentation_ratio{DEVICE}": "0.3x60",
        f"memory_utilization_ratio{DEVICE}": "0.4x60",
    },
    "MemoryLeak": {
        f"memory_leak_bytes_per_epoch{DEVICE}": "4x60",
        f"memory_limit_bytes{DEVICE}": "1000x60",
    },
    "Swapping": {'memory_swaps_total{direction="out"}': "0+500x60"},
    "XLAFallback": {
        'xla_compilations_total{result="success"}': "99x60",
        'xla_compilations_total{result="fallback"}': "1x60",
    },
    "XLACompileTime": {
        "xla_compile_time_ratio": "0.06x60",
        "steps_total": "199x60",
    },
}


def rule_test(name, series, fires):
    """Returns one of promtool's tests of a rule."""
    (alert,) = [a for a in all_alerts() if a.name == f"KerasTfopt{name}"]
    labels = series and next(iter(series)).partition("{")[2].rstrip("}")
    found = dict(
        part.split("=") for part in labels.replace('"', "").split(",") if part
    )
    found.pop("result", None)
    expected = {
        "exp_labels": {**found, "severity": alert.severity},
        "exp_annotations": {"summary": alert.summary},
    }
    return {
        "interval": "1m",
        "name": f"{name} {'fires' if fires else 'is quiet'}",
        "input_series": [
            {"series": f"keras_tfopt_{key}", "values": values}
            for key, values in series.items()
        ],
        "alert_rule_test": [
            {
                "eval_time": "1h",
                "alertname": alert.name,
                "exp_alerts": [expected] if fires else [],
            }
        ],
    }


@prometheus_tools.needs_promtool
def test_promtool_accepts_the_files(tmp_path):
    write_dashboards(tmp_path)
    said = prometheus_tools.promtool(
        "check", "config", str(tmp_path / "prometheus" / "prometheus.yml")
    )
    assert f"{len(all_alerts())} rules found" in said


@prometheus_tools.needs_promtool
def test_each_rule_fires_when_it_shall(tmp_path):
    write_dashboards(tmp_path)
    rules = yaml.safe_load((tmp_path / "prometheus/alerts.yml").read_text())
    for rule in rules["groups"][0]["rules"]:
        # It holds the value, which is not what is tested.
        del rule["annotations"]["description"]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    tests = [
        rule_test(name, series, fires)
        for cases, fires in ((BAD, True), (GOOD, False))
        for name, series in cases.items()
    ]
    (tmp_path / "tests.yml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yml"], "tests": tests})
    )
    prometheus_tools.promtool("test", "rules", "tests.yml", directory=tmp_path)


def test_every_alert_has_a_case():
    names = {alert.name.removeprefix("KerasTfopt") for alert in all_alerts()}
    assert set(BAD) == set(GOOD) == names


def test_dashboard_shows_every_curve():
    panels = [p for p in dashboard()["panels"] if p["type"] == "timeseries"]
    shown = [panel["targets"][0]["expr"] for panel in panels]
    assert sorted(shown) == sorted(c.signal.promql for c in all_curves())
    places = [tuple(panel["gridPos"].values())[:2] for panel in panels]
    assert len(set(places)) == len(places)
    utilization = next(p for p in panels if p["title"] == "utilization ratio")
    steps = utilization["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert steps[1] == {"color": "red", "value": 0.85}


def test_files_fit_together(tmp_path):
    paths = write_dashboards(tmp_path, targets=("10.0.0.1:9090",))
    files = {path.relative_to(tmp_path).as_posix(): path for path in paths}
    compose = yaml.safe_load(files["compose.yml"].read_text())
    for service in compose["services"].values():
        for volume in service["volumes"]:
            assert (tmp_path / volume.partition(":")[0]).is_dir()
    scrape = yaml.safe_load(files["prometheus/prometheus.yml"].read_text())
    (job,) = scrape["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["10.0.0.1:9090"]}]
    source = yaml.safe_load(
        files["grafana/provisioning/datasources/prometheus.yml"].read_text()
    )["datasources"][0]
    shown = json.loads(files["grafana/dashboards/keras_tfopt.json"].read_text())
    used = {
        p["datasource"]["uid"] for p in shown["panels"] if p["type"] != "row"
    }
    assert used == {source["uid"]}
