"""Commands that start several workers."""

import functools
import sys
from typing import Annotated

import typer

from keras_tfopt import launcher


def launch(
    command: Annotated[
        list[str],
        typer.Argument(help="After --: program and arguments of each worker."),
    ],
    workers: Annotated[
        int, typer.Option(min=1, help="Workers on this host.")
    ] = 1,
    parameter_servers: Annotated[
        int,
        typer.Option(
            min=0, help="Parameter servers on this host, and a coordinator."
        ),
    ] = 0,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often the group starts again.")
    ] = 0,
    grace_seconds: Annotated[
        float,
        typer.Option(min=0, help="Time to end in after a worker failed."),
    ] = 30.0,
    hosts: Annotated[
        str | None,
        typer.Option(help="All hosts, separated by commas. Default: this one."),
    ] = None,
    rank: Annotated[
        int, typer.Option(min=0, help="Place of this host among them.")
    ] = 0,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="First port on each host.")
    ] = 2222,
) -> None:
    """Run a program as workers of one training, again after a failure.

    Sets TF_CONFIG, shares the GPUs of this host, prefixes the output, and
    passes signals on. Ends with the code of the worker that failed first.
    """
    if parameter_servers and hosts is not None:
        print(
            "Parameter servers are started on one host. Received: --hosts "
            f"{hosts} with --parameter-servers {parameter_servers}. Expected: "
            "one of them. On several hosts write TF_CONFIG with the jobs "
            "chief, ps and worker.",
            file=sys.stderr,
        )
        raise typer.Exit(2)
    local = functools.partial(
        launcher.local_cluster, workers, parameter_servers
    )
    log = launcher.WorkerLog(sys.stdout)
    if parameter_servers:
        log = launcher.WorkerLog(sys.stdout, local().name_of)
    launched = launcher.LaunchSettings(
        command,
        local
        if hosts is None
        else functools.partial(
            launcher.cluster_of_hosts, hosts.split(","), rank, workers, port
        ),
        max_restarts=max_restarts,
        grace_seconds=grace_seconds,
        gpus=launcher.gpus_of_host(),
    )
    try:
        code = launcher.launch(launched, log)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from error
    raise typer.Exit(code)


def manifest(
    kind: Annotated[str, typer.Argument(help="kubernetes or slurm.")],
    command: Annotated[
        list[str],
        typer.Argument(help="After --: program and arguments of each worker."),
    ],
    name: Annotated[str, typer.Option(help="Name of the job.")] = "training",
    image: Annotated[
        str, typer.Option(help="Container image, for kubernetes.")
    ] = "training:latest",
    hosts: Annotated[int, typer.Option(min=1, help="Hosts.")] = 2,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of a host.")] = 1,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="Restarts, for slurm.")
    ] = 3,
) -> None:
    """Print a file that starts a training on Kubernetes or Slurm."""
    if kind == "kubernetes":
        print(launcher.kubernetes_manifest(name, image, hosts, gpus, command))
    elif kind == "slurm":
        print(launcher.slurm_script(name, hosts, gpus, max_restarts, command))
    else:
        print(
            f"Unknown kind of manifest. Received: {kind!r}. "
            "Expected: kubernetes or slurm.",
            file=sys.stderr,
        )
        raise typer.Exit(2)
