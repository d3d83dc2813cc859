"""Each examination, on what the machine has and on what others may have."""

import json

import pynvml
import pytest
from typer import testing

from keras_tfopt import cli
from keras_tfopt import doctor
from keras_tfopt.doctor import cluster
from keras_tfopt.doctor import disk
from keras_tfopt.doctor import driver
from keras_tfopt.doctor import environment
from keras_tfopt.doctor import host
from keras_tfopt.doctor import versions
from keras_tfopt.launcher import local_cluster
from keras_tfopt.memory import DriverReading
from keras_tfopt.memory import HostMemory
from keras_tfopt.memory import gpus
from tests.nvml import library

GIB = 2**30


def severities(findings):
    return [finding.severity for finding in findings]


@pytest.mark.parametrize(
    ("version", "severity"), [("2.21.0", "ok"), ("2.19.1", "error")]
)
def test_version_is_compared(version, severity):
    (finding,) = versions.compare_versions(
        ["tensorflow>=2.20,<2.22"], lambda name: version
    )

    assert finding.severity == severity
    assert version in finding.text
    assert bool(finding.advice) is (severity == "error")


def test_missing_package_is_an_error():
    (finding,) = versions.compare_versions(["keras>=3.13"], lambda name: None)
    assert finding.severity == "error"
    assert finding.text == "keras is not installed; expected >=3.13"


def test_extras_are_not_required():
    requirements = ["scikit-learn>=1.5; extra == 'demo'"]
    assert not list(versions.compare_versions(requirements, lambda name: None))


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, []),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["info"]),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ["info", "warning"]),
        ({"TF_USE_LEGACY_KERAS": "1"}, ["warning"]),
        ({"TF_CPU_BFC_MEM_LIMIT_IN_MB": "9"}, ["info", "warning"]),
        ({"TF_CPU_ALLOCATOR_USE_BFC": "true"}, ["info", "warning"]),
        (
            {
                "TF_CPU_ALLOCATOR_USE_BFC": "true",
                "TF_ENABLE_ONEDNN_OPTS": "0",
            },
            ["info", "info"],
        ),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, ["warning"]),
    ],
)
def test_variables(variables, found):
    findings = list(environment.examine_variables(variables))

    assert severities(findings) == found
    for finding in findings:
        assert bool(finding.advice) is (finding.severity == "warning")


def test_other_backend_is_an_error():
    assert severities(environment.examine_backend("jax")) == ["error"]


def test_folder_that_is_missing_is_an_error(tmp_path):
    missing, temporary = disk.examine_disk(tmp_path / "none")
    assert missing.severity == "error"
    assert "No such file" in missing.text
    assert temporary.severity in ("ok", "warning")


def test_nothing_stays_on_disk(tmp_path):
    list(disk.examine_disk(tmp_path))
    assert not list(tmp_path.iterdir())


def test_gpus_that_others_use_are_named(monkeypatch):
    library.load(monkeypatch, "gpus=2")
    findings = list(driver.examine_driver())
    shown = [found.text for found in findings if found.severity == "ok"]
    assert [text[:5] for text in shown] == ["GPU 0", "GPU 1"] * 2
    assert "16.0 GiB" in shown[0]
    assert "PHB" in shown[2]


def test_near_gpus_are_proposed(monkeypatch):
    library.load(monkeypatch, "islands")
    proposed = [
        found for found in driver.examine_driver() if found.severity == "info"
    ]
    assert [found.text[:16] for found in proposed] == [
        "of 2 GPUs, 0,1 a",
        "of 4 GPUs, 0,1,2",
    ]
    assert "CUDA_VISIBLE_DEVICES=0,1,2,3" in proposed[1].advice


def test_hot_and_shared_gpu():
    gpu = gpus.Gpu(3, "GPU-x", name="H100")
    reading = DriverReading(
        total_bytes=80 * GIB, other_bytes=5 * GIB, temperature_celsius=90
    )
    shown, shared, hot = driver.examine_gpu(gpu, reading)
    assert shown.text == "GPU 3, H100: GPU-x, 80.0 GiB"
    assert "other processes use 5.0 GiB" in shared.text
    assert "90 degrees" in hot.text


def test_machine_without_driver(monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    (finding,) = driver.examine_driver()
    assert finding.severity == "info"


@pytest.mark.parametrize(
    ("memory", "severity"),
    [
        (HostMemory(GIB, 2 * GIB, 9 * GIB, 16 * GIB), "ok"),
        (HostMemory(GIB, 2 * GIB, 9 * GIB, 3 * GIB), "warning"),
        (HostMemory(GIB, None, GIB, 16 * GIB), "warning"),
        (HostMemory(), "ok"),
    ],
)
def test_host(memory, severity):
    assert severities(host.examine_host_memory(memory)) == [severity]


def test_cluster():
    config = local_cluster(2).tf_config(1)
    (right,) = cluster.examine_tf_config(config)
    (wrong,) = cluster.examine_tf_config(config.replace("worker", "wroker"))
    (missing,) = cluster.examine_tf_config(None)
    assert right.text == "worker 1 of 2 workers"
    assert wrong.severity == "error"
    assert missing.severity == "ok"


def test_every_topic_is_looked_at():
    topics = {finding.topic for finding in doctor.examine()}
    assert topics == {
        "cluster",
        "devices",
        "disk",
        "driver",
        "environment",
        "host",
        "versions",
    }


def test_command(tmp_path):
    run = testing.CliRunner().invoke
    findings = json.loads(run(cli.app, ["doctor", "--json"]).output)
    assert {"topic", "severity", "text", "advice"} == set(findings[0])

    table = run(cli.app, ["doctor"], env={"COLUMNS": "200"})

    assert table.exit_code == 0, table.output
    assert "pip install 'keras-tfopt[gpu]'" in table.output
    missing = ["doctor", "--path", str(tmp_path / "none")]
    assert run(cli.app, missing).exit_code == 1
