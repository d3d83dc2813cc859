"""Two workers train as one device does."""

import concurrent.futures
import json
import socket

import keras
import numpy as np
import pytest

from keras_tfopt import distribution
from keras_tfopt.distribution.peers import wait_for_peers
from keras_tfopt.launcher import Cluster
from keras_tfopt.launcher import local_cluster
from tests import models
from tests import subprocesses
from tests.equivalence import run


def free_addresses(count):
    return list(local_cluster(count).addresses)


def tf_config(addresses, index):
    return Cluster(tuple(addresses), 0, len(addresses)).tf_config(index)


@pytest.mark.distributed
def test_two_workers_equal_one_device(tmp_path):
    addresses = free_addresses(2)

    def work(index):
        path = tmp_path / f"{index}.json"
        process = subprocesses.run_python(
            "-m",
            "tests.distribution.worker",
            str(path),
            TF_CONFIG=tf_config(addresses, index),
        )
        assert process.returncode == 0, process.stderr
        return json.loads(path.read_text())

    def train(model):
        x, y = models.X[:24], models.Y[:24]
        return models.fit(model, x, y, batch_size=8, validation_data=(x, y))

    with concurrent.futures.ThreadPoolExecutor() as pool:
        results = pool.map(work, range(2))
        expected = run(models.regressor, train, keras.Model)
        outputs = expected.model.predict(models.X[:24], verbose=0)
        for result in results:
            assert result["name"] == "multi_worker_mirrored"
            assert result["replicas"] == 2
            assert result["history"].keys() == expected.history.keys()
            for key, values in expected.history.items():
                np.testing.assert_allclose(
                    result["history"][key], values, rtol=1e-6, atol=1e-6
                )
            np.testing.assert_allclose(result["outputs"], outputs, atol=1e-6)
            for actual, wanted in zip(
                result["weights"], expected.model.get_weights(), strict=True
            ):
                np.testing.assert_allclose(actual, wanted, atol=1e-6)


def cluster(addresses, index=0):
    return distribution.parse_tf_config(tf_config(addresses, index))


def test_worker_that_is_missing_is_named():
    addresses = free_addresses(3)
    with socket.create_server(("127.0.0.1", int(addresses[2].split(":")[1]))):
        with pytest.raises(TimeoutError) as error:
            wait_for_peers(cluster(addresses), 0.1)
    answers = str(error.value).split("Expected")[0]
    assert addresses[1] in answers and addresses[2] not in answers


def test_workers_wait_for_each_other():
    addresses = free_addresses(2)
    servers = []

    def stand_in(index):
        # For TensorFlow, which listens there once all have been found.
        port = int(addresses[index].split(":")[1])
        servers.append(socket.create_server(("127.0.0.1", port)))

    with concurrent.futures.ThreadPoolExecutor() as pool:
        first = pool.submit(wait_for_peers, cluster(addresses), 60)
        first.add_done_callback(lambda _: stand_in(0))
        wait_for_peers(cluster(addresses, 1), 60)
        stand_in(1)
        first.result()
    for server in servers:
        server.close()


def test_own_address_that_is_taken():
    (address,) = free_addresses(1)
    with socket.create_server(("", int(address.split(":")[1]))):
        with pytest.raises(ValueError, match=f"{address}.*Expected: a free"):
            wait_for_peers(cluster([address]), 1)
