import re

import pytest

from keras_tfopt.telemetry.catalogue import CATALOGUE
from keras_tfopt.telemetry.catalogue import all_alerts
from keras_tfopt.telemetry.catalogue import all_curves
from keras_tfopt.telemetry.catalogue import metric_named
from keras_tfopt.telemetry.history import History
from keras_tfopt.telemetry.store import MetricStore
from tests.telemetry import prometheus_tools

# The names that users' dashboards and rules rely on.
PROMISED = {
    "memory_allocated_bytes": ("gauge", "device"),
    "memory_allocated_peak_bytes": ("gauge", "device"),
    "memory_device_used_bytes": ("gauge", "device"),
    "memory_limit_bytes": ("gauge", "device"),
    "memory_utilization_ratio": ("gauge", "device"),
    "memory_fragmentation_ratio": ("gauge", "device"),
    "memory_leak_bytes_per_epoch": ("gauge", "device"),
    "host_memory_rss_bytes": ("gauge",),
    "memory_swaps_total": ("counter", "direction"),
    "memory_swapped_bytes_total": ("counter", "direction"),
    "oom_recoveries_total": ("counter",),
    "microbatch_size": ("gauge",),
    "accumulation_steps": ("gauge",),
    "xla_compilations_total": ("counter", "result"),
    "xla_compile_seconds_total": ("counter",),
    "xla_compile_time_ratio": ("gauge",),
    "xla_fusions": ("gauge",),
    "xla_fused_ops": ("gauge",),
    "xla_fusion_saved_bytes": ("gauge",),
    "communication_time_ratio": ("gauge", "source"),
    "load_imbalance_ratio": ("gauge",),
    "replica_compute_seconds": ("gauge", "replica"),
    "reduced_bytes_total": ("counter",),
    "gradient_norm": ("gauge",),
    "gradient_vanishing_ratio": ("gauge",),
    "loss": ("gauge",),
    "loss_spikes_total": ("counter",),
    "nonfinite_steps_total": ("counter",),
    "steps_total": ("counter",),
    "samples_total": ("counter",),
    "step_duration_seconds": ("histogram",),
    "data_wait_ratio": ("gauge",),
    "last_step_timestamp_seconds": ("gauge",),
    "build_info": ("info", "version", "tensorflow", "keras"),
    "telemetry_overhead_seconds_total": ("counter",),
    "compiled_shapes": ("gauge",),
    "plan_changes_total": ("counter", "reason"),
    "plan_changes_failed_total": ("counter", "reason"),
    "backup_seconds": ("gauge",),
    "backup_stall_seconds": ("gauge",),
    "backup_age_seconds": ("gauge",),
    "offload_hit_ratio": ("gauge",),
}

PROMISED_TAGS = {
    "memory/allocated_bytes",
    "memory/allocated_peak_bytes",
    "memory/device_used_bytes",
    "memory/utilization_ratio",
    "memory/fragmentation_ratio",
    "memory/leak_bytes_per_epoch",
    "memory/host_rss_bytes",
    "memory/swaps_per_second",
    "memory/swapped_bytes_per_second",
    "memory/oom_recoveries",
    "train/microbatch_size",
    "train/accumulation_steps",
    "xla/compile_success_ratio",
    "xla/compile_seconds",
    "xla/compile_time_ratio",
    "xla/fusions",
    "xla/fused_ops",
    "xla/fusion_saved_bytes",
    "distribute/communication_time_ratio",
    "distribute/load_imbalance_ratio",
    "optimizer/gradient_norm",
    "optimizer/gradient_vanishing_ratio",
    "train/loss",
    "train/loss_spikes",
    "train/nonfinite_steps",
    "train/samples_per_second",
    "train/step_seconds",
    "train/step_seconds_p05",
    "train/step_seconds_p95",
    "train/data_wait_ratio",
    "telemetry/overhead_ratio",
}

# Threshold and seconds of each promised alert.
PROMISED_ALERTS = {
    "KerasTfoptMemoryAlmostFull": (">", 0.85, 60),
    "KerasTfoptMemoryFull": (">", 0.90, 60),
    "KerasTfoptMemoryFragmented": (">", 0.20, 120),
    "KerasTfoptMemoryLeak": (">", 0.005, 0),
    "KerasTfoptSwapping": (">", 10, 60),
    "KerasTfoptOutOfMemory": (">", 0, 0),
    "KerasTfoptXLAFallback": ("<", 0.95, 0),
    "KerasTfoptXLACompileTime": (">", 0.05, 300),
    "KerasTfoptCommunicationBound": (">", 0.20, 300),
    "KerasTfoptCommunicationDominates": (">", 0.30, 300),
    "KerasTfoptStraggler": (">", 0.10, 300),
    "KerasTfoptGradientSpike": (">", 10, 0),
    "KerasTfoptVanishingGradients": (">", 0.5, 300),
    "KerasTfoptLossSpikes": (">", 3, 0),
    "KerasTfoptNonFinite": (">", 0, 0),
    "KerasTfoptInputBound": (">", 0.10, 300),
    "KerasTfoptStalled": (">", 300, 0),
    "KerasTfoptBackupOld": (">", 3600, 0),
}


def full_store():
    """Returns a store with a value of each metric."""
    store = MetricStore()
    for metric in CATALOGUE:
        labels = dict.fromkeys(metric.labels, "x")
        if metric.kind == "histogram":
            store.observe(metric.name, 0.02)
        elif metric.kind == "counter":
            store.add(metric.name, 2, **labels)
        else:
            store.set(metric.name, 1, **labels)
    return store


def exposed(store):
    """Returns the text that Prometheus would be served."""
    import prometheus_client

    from keras_tfopt.telemetry.registry import registry_of

    history = History()
    history.append(store.snapshot(1000.0, 1))
    registry = registry_of(history)
    return prometheus_client.generate_latest(registry).decode()


@pytest.mark.parametrize("name", PROMISED)
def test_promised_name(name):
    metric = metric_named(name)
    assert (metric.kind, *metric.labels) == PROMISED[name]


def test_promised_tags():
    tags = [curve.tag for curve in all_curves()]
    assert len(set(tags)) == len(tags)
    assert set(tags) >= PROMISED_TAGS


@pytest.mark.parametrize("name", PROMISED_ALERTS)
def test_promised_alert(name):
    (alert,) = [alert for alert in all_alerts() if alert.name == name]
    condition = alert.condition
    assert (
        condition.comparison,
        condition.threshold,
        alert.for_seconds,
    ) == PROMISED_ALERTS[name]


def test_every_entry_is_sound():
    names = [metric.name for metric in CATALOGUE]
    assert len(set(names)) == len(names)
    for metric in CATALOGUE:
        assert metric.kind in ("gauge", "counter", "histogram", "info")
        assert re.fullmatch(r"[A-Z].*\.", metric.meaning)
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        stem = metric.name.removesuffix("_total")
        if metric.unit and "per_epoch" not in metric.name:
            assert stem.endswith(f"_{metric.unit}")
        assert bool(metric.buckets) == (metric.kind == "histogram")
    for alert in all_alerts():
        assert alert.severity in ("info", "warning", "critical")


def test_every_metric_is_exposed():
    text = exposed(full_store())
    for metric in CATALOGUE:
        shown = "gauge" if metric.kind == "info" else metric.kind
        assert f"# TYPE {metric.full_name} {shown}\n" in text
        assert f"# HELP {metric.full_name} {metric.help}\n" in text
    assert 'keras_tfopt_step_duration_seconds_bucket{le="0.01"} 0.0' in text
    assert 'keras_tfopt_step_duration_seconds_bucket{le="0.025"} 1.0' in text


@prometheus_tools.needs_promtool
def test_promtool_accepts_every_metric():
    said = prometheus_tools.promtool(
        "check", "metrics", text=exposed(full_store())
    )
    assert said == ""


def test_unknown_value_has_no_series():
    store = MetricStore()
    assert exposed(store) == ""
    store.set("loss", 1.5)
    assert "keras_tfopt_loss 1.5\n" in exposed(store)
    store.set("loss", float("nan"))
    assert exposed(store) == ""


def test_store_takes_only_what_the_catalogue_knows():
    store = MetricStore()
    with pytest.raises(KeyError):
        store.set("losses", 1.0)
    with pytest.raises(ValueError, match="Expected: \\['device'\\]"):
        store.set("memory_limit_bytes", 1.0, gpu="0")


def test_absence_is_explained_once(caplog):
    caplog.set_level("INFO", "keras_tfopt")
    store = MetricStore()
    store.explain_absence("loss", "no logs")
    store.explain_absence("loss", "no logs")
    assert [r.getMessage() for r in caplog.records] == [
        "No value for loss: no logs."
    ]
