import subprocess

import kubernetes_validate
import pytest
import yaml

from keras_tfopt.launcher import manifests

COMMAND = ["python", "train.py", "--name", "a b; rm -rf /"]


@pytest.fixture(scope="module")
def service_and_job():
    text = manifests.kubernetes_manifest(
        "digits", "repo/image:1", 3, 2, COMMAND
    )
    return list(yaml.safe_load_all(text))


def test_kubernetes_accepts_it(service_and_job):
    for document in service_and_job:
        kubernetes_validate.validate(document, "1.33", strict=True)


def test_pods_are_the_hosts_of_the_cluster(service_and_job):
    service, job = service_and_job
    name = service["metadata"]["name"]
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    arguments = container["command"]

    assert pod["subdomain"] == name == job["metadata"]["name"]
    hosts = arguments[arguments.index("--hosts") + 1].split(",")
    assert hosts == [f"digits-{index}.digits" for index in range(3)]
    assert job["spec"]["completions"] == len(hosts)
    rank = arguments[arguments.index("--rank") + 1]
    assert rank == f"$({container['env'][0]['name']})"
    assert arguments[arguments.index("--") + 1 :] == COMMAND
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2


def test_pods_without_gpus_ask_for_none():
    text = manifests.kubernetes_manifest("digits", "image", 1, 0, COMMAND)
    assert "nvidia" not in text


@pytest.fixture
def cluster_of_slurm(tmp_path):
    """Stands for the two programs of Slurm, which run what they are given."""
    for name, body in {
        "scontrol": "echo node1; echo node2",
        "srun": 'SLURM_NODEID=1 "$@"',
        "keras-tfopt": 'printf "%s\\n" "$@"',
    }.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/bash\n{body}\n")
        program.chmod(0o755)
    return tmp_path


def test_slurm_starts_a_launcher_on_each_node(cluster_of_slurm):
    script = cluster_of_slurm / "job.sh"
    script.write_text(manifests.slurm_script("digits", 2, 4, 5, COMMAND))

    process = subprocess.run(
        ["bash", "-eu", script],
        env={
            "PATH": f"{cluster_of_slurm}:/usr/bin:/bin",
            "SLURM_JOB_NODELIST": "node[1-2]",
        },
        capture_output=True,
        text=True,
        check=True,
    )

    arguments = process.stdout.splitlines()
    assert arguments[: arguments.index("--")] == [
        *("launch", "--max-restarts", "5", "--hosts", "node1,node2"),
        *("--rank", "1", "--port", "2222"),
    ]
    assert arguments[arguments.index("--") + 1 :] == COMMAND
    header = script.read_text()
    assert "#SBATCH --nodes=2" in header
    assert "#SBATCH --gpus-per-node=4" in header


def test_slurm_without_gpus():
    assert "gpus" not in manifests.slurm_script("digits", 2, 0, 0, COMMAND)
