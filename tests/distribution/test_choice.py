"""Which strategy is made of what there is, and what is refused."""

import json
import logging
import urllib.error

import keras
import pytest
import tensorflow as tf

from keras_tfopt import distribution


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.delenv("TPU_NAME", raising=False)


def tf_config(**cluster):
    task = {"type": "worker", "index": 0}
    return json.dumps({"cluster": cluster, "task": task})


def test_nothing_to_distribute_over(caplog):
    with caplog.at_level(logging.INFO, "keras_tfopt"):
        chosen = distribution.strategy()
    assert chosen.name == "default"
    with chosen.scope():
        assert not tf.distribute.has_strategy()
    assert "no GPU, no TPU" in str(chosen) and "1 replica:" in str(chosen)
    assert str(chosen) in caplog.text


@pytest.mark.parametrize("devices", [None, ["/device:cpu:0"], ["CPU:0"]])
def test_one_device(devices):
    chosen = distribution.strategy("one_device", devices=devices)
    assert isinstance(chosen.strategy, tf.distribute.OneDeviceStrategy)


def test_mirrored_takes_the_cpus_where_there_is_no_gpu():
    cpus = tf.config.list_logical_devices("CPU")
    chosen = distribution.strategy("mirrored")
    assert chosen.strategy.num_replicas_in_sync == len(cpus)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "mirror"}, "`name`.*'mirror'.*'mirrored'"),
        ({"cross_device_ops": "ring"}, "`cross_device_ops`.*'nccl'"),
        ({"communication": "tcp"}, "`communication`.*'ring'"),
        ({"name": "mirrored", "devices": []}, r"devices=\[\].*CPU:0"),
        ({"name": "mirrored", "devices": ["GPU:7"]}, "GPU:7.*CPU:0"),
        ({"name": "mirrored", "devices": ["CPU:0"] * 2}, "different ones"),
        ({"devices": ["CPU:0"]}, "name='mirrored'"),
        ({"cross_device_ops": "nccl"}, "name='mirrored'"),
        (
            {"name": "mirrored", "cross_device_ops": "nccl"},
            "NCCL.*GPUs only.*Expected",
        ),
        (
            {
                "name": "mirrored",
                "devices": ["CPU:0"],
                "cross_device_ops": "hierarchical_copy",
            },
            "odd number.*Expected: an even number",
        ),
        ({"name": "tpu"}, "TPU_NAME=None.*Please provide a TPU Name"),
        ({"name": "parameter_server"}, r"the jobs \[\].*Expected.*`chief`"),
        ({"name": "multi_worker_mirrored"}, "task.type=None.*Expected"),
    ],
    ids=str,
)
def test_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        distribution.strategy(**arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (tf_config(worker=["a:1", "b:1"]), "after TensorFlow has started"),
        (tf_config(worker=["a:1"], ps=["b:1"]), r"jobs \['ps', 'worker'\]"),
        (
            tf_config(worker=["a:1"], ps=["b:1"], chief=["c:1"]),
            r"task.type='worker'.*Expected: `distribution.serve\(\)`",
        ),
        (tf_config(worker=["a"]), r"`cluster.worker\[0\]`"),
    ],
)
def test_tf_config_is_followed(monkeypatch, text, message):
    tf.config.list_logical_devices()
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match=message):
        distribution.strategy()


def test_nccl_between_workers_without_gpus(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", tf_config(worker=["a:1", "b:1"]))
    with pytest.raises(ValueError, match="NCCL connects GPUs.*Expected"):
        distribution.strategy(communication="nccl")


def test_one_worker_is_no_cluster(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", tf_config(worker=["a:1"]))
    assert distribution.strategy().name == "default"


def test_named_tpu_that_cannot_be_reached(monkeypatch):
    monkeypatch.setenv("TPU_NAME", "tpu-1")

    def resolve(*args):
        # What TensorFlow meets where there is no Google Cloud.
        raise urllib.error.URLError("Name or service not known")

    resolver = tf.distribute.cluster_resolver.TPUClusterResolver
    monkeypatch.setattr(resolver, "__init__", resolve)
    with pytest.raises(ValueError, match="TPU_NAME='tpu-1'.*not known.*Exp"):
        distribution.strategy()


def test_keras_distribution_is_refused():
    devices = ["cpu:0"]
    keras.distribution.set_distribution(
        keras.distribution.DataParallel(devices=devices)
    )
    try:
        with pytest.raises(ValueError, match="DataParallel.*Expected"):
            distribution.strategy()
    finally:
        keras.distribution.set_distribution(None)
