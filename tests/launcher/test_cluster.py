import json

import pytest

from keras_tfopt.launcher import cluster


def test_local_cluster_has_a_port_for_each():
    made = cluster.local_cluster(3)

    assert len(set(made.addresses)) == 3
    assert list(made.indices) == [0, 1, 2]
    config = json.loads(made.tf_config(2))
    assert config["cluster"]["worker"] == list(made.addresses)
    assert config["task"] == {"type": "worker", "index": 2}


def test_parameter_servers_come_with_a_coordinator():
    made = cluster.local_cluster(2, parameter_servers=1)

    assert len(set(made.addresses)) == made.count == 4
    config = json.loads(made.tf_config(3))
    assert config["cluster"] == {
        "chief": [made.addresses[0]],
        "ps": [made.addresses[1]],
        "worker": list(made.addresses[2:]),
    }
    tasks = [json.loads(made.tf_config(index))["task"] for index in range(4)]
    assert [(task["type"], task["index"]) for task in tasks] == [
        ("chief", 0),
        ("ps", 0),
        ("worker", 0),
        ("worker", 1),
    ]
    devices = [made.devices_of(index, ["0", "1"]) for index in range(4)]
    assert devices == [[], [], ["0"], ["1"]]


def test_share_of_a_host():
    made = cluster.cluster_of_hosts(["a", "b"], rank=1, workers=2, port=2222)
    assert made.addresses == ("a:2222", "a:2223", "b:2222", "b:2223")
    assert list(made.indices) == [2, 3]


@pytest.mark.parametrize("rank", [-1, 2])
def test_host_that_is_none(rank):
    with pytest.raises(ValueError, match=f"rank={rank}"):
        cluster.cluster_of_hosts(["a", "b"], rank, 1, 2222)


def test_devices_are_shared():
    devices = ["4", "5", "GPU-6", "7"]
    shared = [cluster.shared_devices(devices, place, 2) for place in (0, 1)]
    assert shared == [["4", "5"], ["GPU-6", "7"]]
    assert cluster.shared_devices([], 0, 2) == []
    with pytest.raises(ValueError, match="4 GPUs cannot be shared by 3"):
        cluster.shared_devices(devices, 0, 3)
