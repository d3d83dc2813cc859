"""Clusters of resolvers become TF_CONFIG."""

import json
import os

import pytest
import tensorflow as tf

from keras_tfopt import distribution
from keras_tfopt.distribution.resolved_cluster import find_cluster
from keras_tfopt.distribution.resolved_cluster import slurm_resolver

resolvers = tf.distribute.cluster_resolver


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.delenv("TPU_NAME", raising=False)
    # What is written there is taken back after the test.
    monkeypatch.setenv("TF_CONFIG", "")


@pytest.fixture
def slurm(monkeypatch):
    """Sets what `srun` sets in a task."""

    def step(rank, node, nodes, tasks_per_node, tasks):
        values = {
            "SLURM_PROCID": rank,
            "SLURMD_NODENAME": node,
            "SLURM_STEP_NODELIST": nodes,
            "SLURM_STEP_TASKS_PER_NODE": tasks_per_node,
            "SLURM_STEP_NUM_TASKS": tasks,
        }
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))

    return step


def simple_resolver(task_type="worker", task_id=1, **jobs):
    jobs = jobs or {"worker": ["a:1", "b:1"]}
    return resolvers.SimpleClusterResolver(
        tf.train.ClusterSpec(jobs), task_type=task_type, task_id=task_id
    )


def test_tasks_of_slurm(slurm):
    slurm(3, "n2", "n[1-2]", "2(x2)", 4)
    cluster, source = find_cluster(slurm_resolver(os.environ))
    assert cluster.workers == ("n1:8888", "n1:8889", "n2:8888", "n2:8889")
    assert (cluster.task_index, source) == (3, "SlurmClusterResolver")
    assert json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 3
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_strategy_of_a_step_of_slurm(slurm):
    slurm(0, "n1", "n[1-2]", "1(x2)", 2)
    tf.config.list_logical_devices()
    assert distribution.strategy("one_device").name == "one_device"
    assert not os.environ["TF_CONFIG"]
    # That of several workers, which is too late here.
    with pytest.raises(ValueError, match="multi_worker.*has started"):
        distribution.strategy()


def test_one_task_of_slurm_is_no_cluster(slurm):
    slurm(0, "n1", "n1", "1", 1)
    assert slurm_resolver(os.environ) is None


def test_tf_config_comes_before_slurm(slurm, monkeypatch):
    slurm(0, "n1", "n[1-2]", "1(x2)", 2)
    monkeypatch.setenv("TF_CONFIG", "{}")
    assert slurm_resolver(os.environ) is None


def test_nodes_that_tensorflow_sorts_otherwise(slurm):
    # The first node is n10 for TensorFlow.
    slurm(0, "n8", "n[8-10]", "1(x3)", 3)
    with pytest.raises(ValueError, match="on n8.*places on n10.*node01"):
        slurm_resolver(os.environ)


def test_a_step_of_slurm_that_cannot_be_read(slurm, monkeypatch):
    slurm(0, "n1", "n[1-2]", "1(x2)", 2)
    monkeypatch.delenv("SLURM_STEP_NODELIST")
    with pytest.raises(ValueError, match="STEP_NODELIST.*Expected.*srun"):
        slurm_resolver(os.environ)


def test_a_resolver():
    cluster, source = find_cluster(simple_resolver())
    assert cluster.workers == ("a:1", "b:1")
    assert (cluster.task_type, cluster.task_index) == ("worker", 1)
    assert source == "SimpleClusterResolver"


@pytest.mark.parametrize(
    ("resolver", "name", "message"),
    [
        (simple_resolver(task_type=None), "auto", "task_type=None.*Expected"),
        (simple_resolver(worker=["a"]), "auto", r"`cluster.worker\[0\]`"),
        (simple_resolver(), "mirrored", "name='mirrored'.*'multi_worker"),
        (simple_resolver(task_id=0, worker=["a:1"]), "auto", "several workers"),
    ],
    ids=["no task", "no port", "one machine", "one worker"],
)
def test_refused(resolver, name, message):
    with pytest.raises(ValueError, match=message):
        distribution.strategy(name, cluster_resolver=resolver)
