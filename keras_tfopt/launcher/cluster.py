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

    Args:
        addresses: Tuple of strings `host:port`, one for each worker.
        first: Integer. Index of the first worker on this host.
        count: Integer. Workers on this host.
    """

    addresses: tuple[str, ...]
    first: int
    count: int

    @property
    def indices(self) -> range:
        """Indices of the workers on this host."""
        return range(self.first, self.first + self.count)

    def tf_config(self, index: int) -> str:
        """Returns the `TF_CONFIG` of a worker.

        Args:
            index: Integer. Index of the worker.
        """
        return json.dumps(
            {
                "cluster": {"worker": list(self.addresses)},
                "task": {"type": "worker", "index": index},
            }
        )


def local_cluster(workers: int) -> Cluster:
    """Returns a cluster of workers on this host alone, on free ports.

    Args:
        workers: Integer.
    """
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(workers))
    return Cluster(addresses, 0, workers)


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
