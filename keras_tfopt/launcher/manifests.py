"""Files that start the workers of a training on a cluster."""

import shlex
from typing import Any

import yaml

_PORT = 2222
_RANK = "JOB_COMPLETION_INDEX"
_PLACE_OF_POD = {
    "fieldPath": "metadata.annotations['batch.kubernetes.io/"
    "job-completion-index']"
}


def kubernetes_manifest(
    name: str, image: str, hosts: int, gpus: int, command: list[str]
) -> str:
    """Returns an indexed Job with a Service that gives its pods names.

    Each pod is one host of the cluster, with one worker on all its GPUs, and is
    started again by Kubernetes. Backups need a volume that all pods share.

    Args:
        name: String. Name of the job, as Kubernetes allows it.
        image: String. Container image with the program and keras_tfopt.
        hosts: Integer. Pods.
        gpus: Integer. GPUs of each pod; 0 asks for none.
        command: List of strings. Program and arguments of each worker.

    Returns:
        String. YAML with two documents.
    """
    addresses = ",".join(f"{name}-{index}.{name}" for index in range(hosts))
    container: dict[str, Any] = {
        "name": "worker",
        "image": image,
        # Kubernetes puts in the value.
        "command": _launch(addresses, f"$({_RANK})") + command,
        "env": [{"name": _RANK, "valueFrom": {"fieldRef": _PLACE_OF_POD}}],
        "ports": [{"containerPort": _PORT}],
        "volumeMounts": [{"name": "backup", "mountPath": "/backup"}],
    }
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    pod = {
        "subdomain": name,
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [
            {
                "name": "backup",
                "persistentVolumeClaim": {"claimName": f"{name}-backup"},
            }
        ],
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "clusterIP": "None",
            # Workers look for each other before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": {"job-name": name},
            "ports": [{"port": _PORT}],
        },
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completionMode": "Indexed",
            "completions": hosts,
            "parallelism": hosts,
            "backoffLimit": 10 * hosts,
            "template": {"spec": pod},
        },
    }
    return yaml.safe_dump_all([service, job], sort_keys=False)


def slurm_script(
    name: str, hosts: int, gpus: int, max_restarts: int, command: list[str]
) -> str:
    """Returns a batch script with one launcher on each node.

    Slurm sends `SIGTERM` two minutes before the end of the allotted time, upon
    which `callbacks.BackupAndRestore` makes a last backup.

    Args:
        name: String. Name of the job.
        hosts: Integer. Nodes.
        gpus: Integer. GPUs of each node; 0 asks for none.
        max_restarts: Integer. As for `LaunchSettings`.
        command: List of strings. Program and arguments of each worker.

    Returns:
        String. A script for `sbatch`.
    """
    gpu_line = [f"#SBATCH --gpus-per-node={gpus}"] if gpus else []
    launched = _launch('"$hosts"', '"$SLURM_NODEID"')
    launched[2:2] = ["--max-restarts", str(max_restarts)]
    launched += map(shlex.quote, command)
    return "\n".join(
        [
            "#!/bin/bash",
            f"#SBATCH --job-name={name}",
            f"#SBATCH --nodes={hosts}",
            "#SBATCH --ntasks-per-node=1",
            *gpu_line,
            "#SBATCH --signal=TERM@120",
            "#SBATCH --requeue",
            "",
            'hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | '
            "paste --serial --delimiters=,)",
            "export hosts",
            f"srun bash -c {shlex.quote(' '.join(launched))}",
            "",
        ]
    )


def _launch(hosts: str, rank: str) -> list[str]:
    return [
        *("keras-tfopt", "launch", "--hosts", hosts),
        *("--rank", rank, "--port", str(_PORT), "--"),
    ]
