"""Who the workers of a training are, as TensorFlow reads it."""

import contextlib
import dataclasses
import glob
import json
import os
import socket


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The addresses of all workers, and which of them run on this host.

    With parameter servers the first address is that of the coordinator, and
    theirs come next; here all of them count as workers.

    Args:
        addresses: Tuple of strings `host:port`, one for each worker.
        first: Integer. Index of the first worker on this host.
        count: Integer. Workers on this host.
        parameter_servers: Integer. Defaults to 0.
    """

    addresses: tuple[str, ...]
    first: int
    count: int
    parameter_servers: int = 0

    @property
    def indices(self) -> range:
        """Indices of the workers on this host."""
        return range(self.first, self.first + self.count)

    @property
    def jobs(self) -> dict[str, list[str]]:
        """Addresses by the names of TensorFlow's jobs."""
        if not self.parameter_servers:
            return {"worker": list(self.addresses)}
        end = 1 + self.parameter_servers
        return {
            "chief": list(self.addresses[:1]),
            "ps": list(self.addresses[1:end]),
            "worker": list(self.addresses[end:]),
        }

    def task(self, index: int) -> tuple[str, int]:
        """Returns the job of a worker, and its place in that job.

        Args:
            index: Integer. Index of the worker.
        """
        tasks = [
            (job, place)
            for job, addresses in self.jobs.items()
            for place in range(len(addresses))
        ]
        return tasks[index]

    def name_of(self, index: int) -> str:
        """Returns what people call a worker, such as `"worker 1"`.

        Args:
            index: Integer. Index of the worker.
        """
        job, place = self.task(index)
        return job if job == "chief" else f"{job} {place}"

    def tf_config(self, index: int) -> str:
        """Returns the `TF_CONFIG` of a worker.

        Args:
            index: Integer. Index of the worker.
        """
        job, place = self.task(index)
        return json.dumps(
            {
                "cluster": self.jobs,
                "task": {"type": job, "index": place},
            }
        )

    def devices_of(self, index: int, devices: list[str]) -> list[str]:
        """Returns which of a host's devices are those of a worker.

        Args:
            index: Integer. Index of the worker.
            devices: List of names, as in `CUDA_VISIBLE_DEVICES`.
        """
        if not self.parameter_servers:
            return shared_devices(devices, index - self.first, self.count)
        job, place = self.task(index)
        if job != "worker":
            return []
        return shared_devices(devices, place, len(self.jobs["worker"]))


def local_cluster(workers: int, parameter_servers: int = 0) -> Cluster:
    """Returns a cluster of workers on this host alone, on free ports.

    Args:
        workers: Integer.
        parameter_servers: Integer. If there are any, a coordinator joins them.
            Defaults to 0.
    """
    servers = 1 + parameter_servers if parameter_servers else 0
    count = workers + servers
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(count))
    return Cluster(addresses, 0, count, parameter_servers)


def cluster_of_hosts(
    hosts: list[str], rank: int, workers: int, port: int
) -> Cluster:
    """Returns this host's share of a cluster of several.

    Args:
        hosts: List of names or addresses, the same on each host.
        rank: Integer. Which of them this one is, from 0.
        workers: Integer. Workers on each host.
        port: Integer. Port of the first worker of a host; the others follow.

    Raises:
        ValueError: If there is no such host.
    """
    if not 0 <= rank < len(hosts):
        raise ValueError(
            f"Invalid value for argument `rank`. Received: rank={rank}. "
            f"Expected: the place of this host among {hosts}, from 0."
        )
    addresses = tuple(
        f"{host}:{port + place}" for host in hosts for place in range(workers)
    )
    return Cluster(addresses, rank * workers, workers)


def free_ports(count: int) -> list[int]:
    """Returns ports of this host that nobody listens on.

    Args:
        count: Integer.
    """
    with contextlib.ExitStack() as stack:
        # Held together, so that none is given twice.
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in held:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in held]


def gpus_of_host() -> list[str] | None:
    """Returns the GPUs that workers of this host share, or `None`.

    Those that `CUDA_VISIBLE_DEVICES` names, or all that the driver shows. The
    launcher itself must not start any of them.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    count = len(glob.glob("/proc/driver/nvidia/gpus/*"))
    return [str(index) for index in range(count)] or None


def shared_devices(devices: list[str], place: int, workers: int) -> list[str]:
    """Returns the devices of one of the workers that share a host.

    Args:
        devices: List of names, as in `CUDA_VISIBLE_DEVICES`.
        place: Integer. Which of the workers of the host, from 0.
        workers: Integer. Workers on the host.

    Raises:
        ValueError: If the workers cannot have as many each.
    """
    each, left = divmod(len(devices), workers)
    if left:
        raise ValueError(
            f"{len(devices)} GPUs cannot be shared by {workers} workers. "
            f"Received: {workers} workers for the GPUs {devices}. Expected: a "
            "number of workers that divides that of the GPUs; name the GPUs "
            "to use in CUDA_VISIBLE_DEVICES."
        )
    return devices[place * each : (place + 1) * each]
