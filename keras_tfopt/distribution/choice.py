"""Choosing a distribution strategy by what the machine has."""

import contextlib
import dataclasses
import logging
import os
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.distribution.cluster import ClusterConfig
from keras_tfopt.distribution.parameter_server import parameter_server_strategy
from keras_tfopt.distribution.peers import wait_for_peers
from keras_tfopt.distribution.resolved_cluster import find_cluster
from keras_tfopt.distribution.resolved_cluster import slurm_resolver

_logger = logging.getLogger("keras_tfopt")

STRATEGIES = (
    "auto",
    "mirrored",
    "multi_worker_mirrored",
    "parameter_server",
    "tpu",
    "one_device",
)
CROSS_DEVICE_OPS = {
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
    "reduction_to_one_device": tf.distribute.ReductionToOneDevice,
}
_IMPLEMENTATIONS = tf.distribute.experimental.CommunicationImplementation
_TPU_RESOLVER = tf.distribute.cluster_resolver.TPUClusterResolver
COMMUNICATIONS = {
    "auto": _IMPLEMENTATIONS.AUTO,
    "ring": _IMPLEMENTATIONS.RING,
    "nccl": _IMPLEMENTATIONS.NCCL,
}


@dataclasses.dataclass(frozen=True)
class ChosenStrategy:
    """A strategy, and why it is this one.

    Attributes:
        name: String. One of the names that `strategy` takes, or `"default"`
            for one device without any distribution.
        strategy: `tf.distribute.Strategy`.
        reason: String. What spoke for it.
    """

    name: str
    strategy: tf.distribute.Strategy
    reason: str

    def scope(self) -> contextlib.AbstractContextManager:
        """Returns the scope to make and compile a model in."""
        return self.strategy.scope()

    def __str__(self) -> str:
        count = self.strategy.num_replicas_in_sync
        replicas = "1 replica" if count == 1 else f"{count} replicas"
        return f"Strategy {self.name}, {replicas}: {self.reason}."


def strategy(
    name: str = "auto",
    *,
    devices: list[str] | None = None,
    cross_device_ops: str | None = None,
    communication: str = "auto",
    cluster_resolver: Any = None,
    timeout_seconds: float = 300.0,
) -> ChosenStrategy:
    """Makes the distribution strategy for this machine, and says why.

    What cannot work here is refused with the reason, instead of an error from
    inside of TensorFlow or a training that silently uses one device. The choice
    is logged. Several strategies in one process do not disturb each other.

    Example:

    ```python
    import keras
    from keras_tfopt import AccumModel
    from keras_tfopt import distribution

    chosen = distribution.strategy("auto")
    print(chosen)
    with chosen.scope():
        inputs = keras.Input((8,))
        outputs = keras.layers.Dense(1)(inputs)
        model = AccumModel(inputs, outputs, microbatch_size=16)
        model.compile("adam", "mse")
    ```

    Args:
        name: String. `"mirrored"` copies a model to all devices of this
            machine; `"one_device"` puts it on one; `"auto"` takes what
            TF_CONFIG or a step of Slurm asks for, then a TPU that the
            environment names, then several GPUs, and else no distribution at
            all. `"tpu"` needs a TPU.
            `"multi_worker_mirrored"` copies a model to all workers of
            TF_CONFIG; only an `AccumModel` trains under it.
            `"parameter_server"` keeps the variables on processes of their own,
            and workers that do not wait for each other train an `AccumModel`;
            see `serve`. Defaults to `"auto"`.
        devices: List of strings such as `"GPU:0"`. Defaults to all GPUs, or all
            logical CPUs where there are none.
        cross_device_ops: String or `None`. How `"mirrored"` adds up gradients:
            `"nccl"`, `"hierarchical_copy"`, `"reduction_to_one_device"`, or
            `None` for TensorFlow's choice. Defaults to `None`.
        communication: String. `"auto"`, `"ring"` or `"nccl"`, between workers.
            Defaults to `"auto"`.
        cluster_resolver: `tf.distribute.cluster_resolver.ClusterResolver` or
            `None`. Who knows the other workers, such as that for Kubernetes or
            Google Compute Engine, or for a TPU. Its cluster is written into
            TF_CONFIG. Defaults to TF_CONFIG, and to Slurm's own variables where
            `srun` has started several tasks.
        timeout_seconds: Float. How long to wait for other workers. Defaults to
            300.

    Returns:
        `ChosenStrategy`.

    Raises:
        ValueError: If an argument or TF_CONFIG is invalid, or if the strategy
            cannot work here.
        TimeoutError: If a worker of TF_CONFIG cannot be reached.
    """
    _check_choice("name", name, STRATEGIES)
    _check_choice(
        "cross_device_ops", cross_device_ops, (None, *CROSS_DEVICE_OPS)
    )
    _check_choice("communication", communication, tuple(COMMUNICATIONS))
    _check_keras_distribution()
    if cluster_resolver is None and name in ("auto", "multi_worker_mirrored"):
        cluster_resolver = slurm_resolver(os.environ)
    is_tpu = isinstance(cluster_resolver, _TPU_RESOLVER)
    cluster, source = find_cluster(None if is_tpu else cluster_resolver)
    reason = "as asked for"
    if name == "auto":
        name, reason = _choose(cluster, source)
        if is_tpu:
            name, reason = "tpu", "the resolver is that of a TPU"
    _check_resolver(name, cluster_resolver)
    if name not in ("mirrored", "one_device") and devices is not None:
        raise ValueError(
            "Only two strategies take devices. Received: "
            f"devices={devices!r} for name={name!r}. Expected: "
            "name='mirrored' or name='one_device'."
        )
    if name != "mirrored" and cross_device_ops is not None:
        raise ValueError(
            "Only one strategy takes cross-device operations. Received: "
            f"cross_device_ops={cross_device_ops!r} for name={name!r}. "
            "Expected: name='mirrored'."
        )
    make = {
        "default": lambda: tf.distribute.get_strategy(),
        "mirrored": lambda: _mirrored(devices, cross_device_ops),
        "one_device": lambda: _one_device(devices),
        "tpu": lambda: _tpu(cluster_resolver),
        "multi_worker_mirrored": lambda: _multi_worker(
            cluster, communication, timeout_seconds
        ),
        "parameter_server": lambda: parameter_server_strategy(
            cluster, timeout_seconds
        ),
    }[name]
    chosen = ChosenStrategy(name, make(), reason)
    _logger.info("%s", chosen)
    return chosen


def _choose(cluster: ClusterConfig | None, source: str) -> tuple[str, str]:
    if cluster is not None and cluster.has_parameter_servers:
        return "parameter_server", f"{source} names parameter servers"
    if cluster is not None and len(cluster.workers) > 1:
        count = len(cluster.workers)
        return "multi_worker_mirrored", f"{source} names {count} workers"
    if os.environ.get("TPU_NAME"):
        return "tpu", f"TPU_NAME is {os.environ['TPU_NAME']!r}"
    gpus = tf.config.list_logical_devices("GPU")
    if len(gpus) > 1:
        return "mirrored", f"there are {len(gpus)} GPUs"
    what = "one GPU" if gpus else "no GPU"
    return "default", f"there is {what}, no TPU and no cluster in TF_CONFIG"


def _mirrored(
    devices: list[str] | None, cross_device_ops: str | None
) -> tf.distribute.Strategy:
    devices = _check_devices(devices)
    _check_cross_device_ops(devices, cross_device_ops)
    # Groups of devices that share a key must be the same: without this, the
    # second strategy of a process breaks the first.
    _compat.separate_collectives()
    operations = None
    if cross_device_ops is not None:
        operations = CROSS_DEVICE_OPS[cross_device_ops]()
    return tf.distribute.MirroredStrategy(devices, operations)


def _check_cross_device_ops(devices: list[str], name: str | None) -> None:
    if name == "nccl" and not all("GPU" in device for device in devices):
        raise ValueError(
            "NCCL adds up gradients on GPUs only. Received: "
            f"cross_device_ops='nccl' with devices={devices}. Expected: GPUs, "
            "or cross_device_ops=None."
        )
    if name == "hierarchical_copy" and len(devices) % 2:
        raise ValueError(
            "Hierarchical copy halves the devices, and leaves out the "
            "gradients of the last of an odd number. Received: "
            f"cross_device_ops='hierarchical_copy' with devices={devices}. "
            "Expected: an even number of devices, or cross_device_ops=None."
        )


def _one_device(devices: list[str] | None) -> tf.distribute.Strategy:
    if devices is None:
        devices = _check_devices(None)[:1]
    devices = _check_devices(devices)
    if len(devices) != 1:
        raise ValueError(
            "Invalid value for argument `devices`. Received: "
            f"devices={devices!r} for name='one_device'. Expected: one device."
        )
    return tf.distribute.OneDeviceStrategy(devices[0])


def _check_devices(devices: list[str] | None) -> list[str]:
    """Returns the devices to use, as short names."""
    there = [
        device.name.removeprefix("/device:")
        for kind in ("GPU", "CPU")
        for device in tf.config.list_logical_devices(kind)
    ]
    if devices is None:
        gpus = [device for device in there if device.startswith("GPU")]
        return gpus or there
    names = [_short_name(device) for device in devices]
    unknown = [
        device
        for device, name in zip(devices, names, strict=True)
        if name not in there
    ]
    if unknown or not names or len(set(names)) < len(names):
        raise ValueError(
            "Invalid value for argument `devices`. "
            f"Received: devices={devices!r}. Expected: different ones of "
            f"{there}, which are all that TensorFlow sees."
        )
    return names


def _short_name(device: str) -> str:
    return device.strip("/").removeprefix("device:").upper()


def _tpu(resolver: Any) -> tf.distribute.Strategy:
    """Connects to a TPU, as TensorFlow describes; not tested on one."""
    try:
        resolver = resolver or _TPU_RESOLVER()
        tf.config.experimental_connect_to_cluster(resolver)
        # A resolver is no proof of a TPU.
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, OSError, tf.errors.OpError) as error:
        raise ValueError(
            "A TPU is asked for, but none can be reached. Received: "
            f"TPU_NAME={os.environ.get('TPU_NAME')!r}; TensorFlow says: "
            f"{error}. Expected: TPU_NAME of a running TPU, and a TensorFlow "
            "that is built for TPUs."
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def _multi_worker(
    cluster: ClusterConfig | None, communication: str, timeout_seconds: float
) -> tf.distribute.Strategy:
    if cluster is None or cluster.task_type not in ("chief", "worker"):
        role = None if cluster is None else cluster.task_type
        raise ValueError(
            "Each worker must know the others. Received: "
            f"name='multi_worker_mirrored' with task.type={role!r} in "
            "TF_CONFIG. Expected: TF_CONFIG with a cluster of workers, one of "
            "which is this process."
        )
    if communication == "nccl" and not tf.config.list_physical_devices("GPU"):
        raise ValueError(
            "NCCL connects GPUs only. Received: communication='nccl' without "
            "a GPU. Expected: communication='ring' or 'auto'."
        )
    if _compat.is_started():
        raise ValueError(
            "TensorFlow connects workers when it starts. Received: "
            "name='multi_worker_mirrored' after TensorFlow has started. "
            "Expected: the strategy before any tensor, variable or device."
        )
    wait_for_peers(cluster, timeout_seconds)
    return tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            implementation=COMMUNICATIONS[communication]
        )
    )


def _check_resolver(name: str, resolver: Any) -> None:
    is_tpu = isinstance(resolver, _TPU_RESOLVER)
    wanted = ("tpu",) if is_tpu else ("multi_worker_mirrored",)
    if resolver is not None and name not in wanted:
        raise ValueError(
            "Only strategies over several processes take a resolver. Received: "
            f"cluster_resolver={type(resolver).__name__} for name={name!r}. "
            f"Expected: name={wanted[0]!r}, and a cluster of several workers."
        )


def _check_choice(argument: str, value: Any, choices: tuple) -> None:
    if value not in choices:
        raise ValueError(
            f"Invalid value for argument `{argument}`. "
            f"Received: {argument}={value!r}. "
            f"Expected: one of {', '.join(map(repr, choices))}."
        )


def _check_keras_distribution() -> None:
    current = keras.distribution.distribution()
    if current is not None:
        raise ValueError(
            "`keras.distribution` does nothing on the TensorFlow backend: "
            "models train on one device, unsharded. Received: "
            f"keras.distribution.set_distribution({type(current).__name__}). "
            "Expected: keras.distribution.set_distribution(None), and a "
            "strategy from here."
        )
