"""Clusters that TensorFlow's resolvers know, in the form of TF_CONFIG."""

from collections.abc import Mapping
import json
import os
from typing import Any

import tensorflow as tf

from keras_tfopt.distribution.cluster import ClusterConfig
from keras_tfopt.distribution.cluster import parse_tf_config


def find_cluster(resolver: Any = None) -> tuple[ClusterConfig | None, str]:
    """Returns the cluster that this process is one of, and who says so.

    What a resolver says is written into TF_CONFIG, since that is where all
    parts of TensorFlow look.

    Args:
        resolver: `tf.distribute.cluster_resolver.ClusterResolver`, or `None`
            for what TF_CONFIG says.

    Returns:
        Tuple of a `ClusterConfig`, or `None` where there is one process, and a
        string.

    Raises:
        ValueError: If what is found is no cluster of which this is a task.
    """
    source = "TF_CONFIG"
    if resolver is not None:
        source = type(resolver).__name__
        os.environ["TF_CONFIG"] = tf_config_of(resolver)
    return parse_tf_config(os.environ.get("TF_CONFIG")), source


def tf_config_of(resolver: Any) -> str:
    """Returns the TF_CONFIG of a resolver's cluster and task.

    Args:
        resolver: `tf.distribute.cluster_resolver.ClusterResolver`.

    Raises:
        ValueError: If the resolver does not know which task this process is.
    """
    # Some resolvers know their task only after this.
    jobs = resolver.cluster_spec().as_dict()
    task = {"type": resolver.task_type, "index": resolver.task_id}
    if None in task.values():
        raise ValueError(
            "Invalid value for argument `cluster_resolver`. Received: "
            f"{type(resolver).__name__} of {jobs} with task_type="
            f"{task['type']!r} and task_id={task['index']!r}. Expected: a "
            "resolver that knows which task this process is; set its "
            "`task_type` and `task_id`, on Kubernetes by the index of the job."
        )
    return json.dumps({"cluster": jobs, "task": task})


def slurm_resolver(environment: Mapping[str, str]) -> Any:
    """Returns a resolver if `srun` has started this and other tasks.

    Args:
        environment: Mapping. The environment of this process.

    Returns:
        `SlurmClusterResolver`; `None` where there is no step of several tasks,
        or where TF_CONFIG says more.

    Raises:
        ValueError: If the step's variables are not those of a cluster.
    """
    is_step = "SLURM_PROCID" in environment
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if environment.get("TF_CONFIG", "").strip() or not is_step or tasks == "1":
        return None
    count = int(tasks)
    try:
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
            # Slurm has told each task its GPUs. Without these TensorFlow asks
            # nvidia-smi, and drops tasks that share a GPU.
            gpus_per_node=count,
            gpus_per_task=1,
            auto_set_gpu=False,
        )
        jobs = resolver.cluster_spec().as_dict()
    except (RuntimeError, ValueError, KeyError) as error:
        raise ValueError(
            "The cluster of this Slurm step cannot be read. Received: "
            f"{error}. Expected: a step that `srun` has started, or TF_CONFIG."
        ) from error
    _check_node(jobs["worker"][resolver.task_id], environment)
    return resolver


def _check_node(address: str, environment: Mapping[str, str]) -> None:
    """Raises if this task runs elsewhere than TensorFlow thinks."""
    host = address.rpartition(":")[0]
    node = environment.get("SLURMD_NODENAME", host)
    if node != host:
        raise ValueError(
            "TensorFlow sorts the names of Slurm's nodes and looks for this "
            f"task on another. Received: task {environment['SLURM_PROCID']} "
            f"on {node}, which TensorFlow places on {host}. Expected: names in "
            "the order of the alphabet, such as node01 to node12, or TF_CONFIG."
        )
