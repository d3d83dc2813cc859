"""Parameter servers: the weights lie on processes of their own."""

import os
import time
from typing import Any

import tensorflow as tf

from keras_tfopt.distribution.cluster import ClusterConfig
from keras_tfopt.distribution.cluster import parse_tf_config
from keras_tfopt.distribution.peers import is_reachable
from keras_tfopt.distribution.peers import wait_for_peers

_SERVERS = ("worker", "ps")
_POLL_SECONDS = 1.0
# A process that starts TensorFlow closes its address for a moment.
_MISSES_OF_AN_END = 5


def is_asynchronous(strategy: tf.distribute.Strategy | None) -> bool:
    """Whether the workers of a strategy do not wait for each other."""
    return isinstance(strategy, tf.distribute.ParameterServerStrategy)


def parameter_server_strategy(
    cluster: ClusterConfig | None, timeout_seconds: float
) -> tf.distribute.Strategy:
    """Connects the coordinator to its workers and parameter servers.

    Args:
        cluster: `ClusterConfig`, or `None` where there is no TF_CONFIG.
        timeout_seconds: Float. How long to wait for the others.

    Raises:
        ValueError: If this process is not the coordinator of such a cluster.
        TimeoutError: If a process of the cluster cannot be reached.
    """
    jobs = {} if cluster is None else cluster.jobs
    if cluster is None or not {"chief", "worker", "ps"} <= jobs.keys():
        raise ValueError(
            "ParameterServerStrategy needs one coordinator, workers and "
            "parameter servers. Received: name='parameter_server', or a "
            f"TF_CONFIG with the job `ps`, and the jobs {sorted(jobs)}. "
            "Expected: TF_CONFIG with the jobs `chief`, `worker` and `ps`, as "
            "`keras-tfopt launch --parameter-servers` writes it."
        )
    if cluster.task_type != "chief":
        raise ValueError(
            "Workers and parameter servers serve the coordinator and make no "
            f"strategy. Received: task.type={cluster.task_type!r} in "
            "TF_CONFIG. Expected: `distribution.serve()` before this, which "
            "serves in such processes until the coordinator ends, and returns "
            "at once in others."
        )
    wait_for_peers(cluster, timeout_seconds)
    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver()
    )
    if strategy.num_replicas_in_sync > 1:
        raise ValueError(
            "Each worker trains on one device. Received: workers with "
            f"{strategy.num_replicas_in_sync} GPUs each. Expected: more "
            "workers, each with one GPU in CUDA_VISIBLE_DEVICES."
        )
    return strategy


def serve(timeout_seconds: float = 300.0) -> None:
    """Serves in the workers and parameter servers of a cluster.

    All processes of a cluster run the same program. In those that TF_CONFIG
    calls `worker` or `ps`, of a cluster with parameter servers, this runs what
    the coordinator sends, and ends the process when the coordinator has ended.
    In all other processes it returns at once. A worker that is killed can be
    started again at any time.

    Example:

    ```python
    from keras_tfopt import distribution

    distribution.serve()
    chosen = distribution.strategy()
    ```

    Args:
        timeout_seconds: Float. How long to wait for the coordinator. Defaults
            to 300.

    Raises:
        TimeoutError: If the coordinator does not come.
    """
    cluster = parse_tf_config(os.environ.get("TF_CONFIG"))
    if cluster is None or not cluster.has_parameter_servers:
        return
    if cluster.task_type not in _SERVERS or "chief" not in cluster.jobs:
        return
    server = tf.distribute.Server(
        {job: list(addresses) for job, addresses in cluster.jobs.items()},
        job_name=cluster.task_type,
        task_index=cluster.task_index,
        protocol="grpc",
    )
    _wait_for_end(cluster.jobs["chief"][0], timeout_seconds)
    del server
    # TensorFlow's server has no way to end but with its process.
    os._exit(0)


def _wait_for_end(address: str, timeout_seconds: float) -> None:
    """Returns when a process that was there is no longer."""
    deadline = time.monotonic() + timeout_seconds
    while not is_reachable(address):
        if time.monotonic() > deadline:
            raise TimeoutError(
                "The coordinator of TF_CONFIG cannot be reached. Received: no "
                f"answer from {address} within {timeout_seconds:g} s. "
                "Expected: a process whose task.type is 'chief'. Start it, or "
                "look at its firewall and at TF_CONFIG."
            )
        time.sleep(_POLL_SECONDS)
    misses = 0
    while misses < _MISSES_OF_AN_END:
        time.sleep(_POLL_SECONDS)
        misses = 0 if is_reachable(address) else misses + 1


class CoordinatorView:
    """A strategy as Keras sees it on the coordinator.

    The coordinator draws the batches itself, so that each is trained on by one
    worker, once per epoch.

    Args:
        strategy: `tf.distribute.ParameterServerStrategy`.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)

    def experimental_distribute_dataset(
        self, dataset: Any, options: Any = None
    ) -> Any:
        """Returns the dataset as it is, for the coordinator to draw from."""
        del options
        return dataset
