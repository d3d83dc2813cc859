"""Waiting for the other processes of a cluster, and naming those missing."""

import socket
import time

from keras_tfopt.distribution.cluster import ClusterConfig

_CONNECT_SECONDS = 1.0
_PAUSE_SECONDS = 0.2


def wait_for_peers(cluster: ClusterConfig, timeout_seconds: float) -> None:
    """Waits until all other processes of a cluster can be reached.

    TensorFlow waits for them, too, but without an end and without a word. Until
    all are there this process listens at its own address, so that the others
    find it; then TensorFlow does.

    Args:
        cluster: `ClusterConfig`.
        timeout_seconds: Float. How long to wait.

    Raises:
        ValueError: If this process cannot listen at its own address.
        TimeoutError: Names those that cannot be reached.
    """
    own = cluster.jobs[cluster.task_type][cluster.task_index]
    missing = [address for address in cluster.members if address != own]
    deadline = time.monotonic() + timeout_seconds
    with _listener(own):
        while True:
            missing = [one for one in missing if not is_reachable(one)]
            if not missing:
                return
            if time.monotonic() > deadline:
                break
            time.sleep(_PAUSE_SECONDS)
    raise TimeoutError(
        "Processes of TF_CONFIG cannot be reached. Received: no answer from "
        f"{', '.join(missing)} within {timeout_seconds:g} s. Expected: all of "
        f"{', '.join(cluster.members)}. Start them, or look at their firewalls "
        "and at TF_CONFIG."
    )


def _listener(address: str) -> socket.socket:
    _, port = _split(address)
    try:
        # The host may be that of a router before this machine.
        if socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True
            )
        return socket.create_server(("", port))
    except OSError as error:
        raise ValueError(
            "This process cannot listen at its own address in TF_CONFIG. "
            f"Received: {address}; the system says: {error}. Expected: a free "
            "port. Does another process of this run use it?"
        ) from error


def is_reachable(address: str) -> bool:
    """Whether a process listens at an address.

    Args:
        address: String `host:port`.
    """
    try:
        socket.create_connection(_split(address), _CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
