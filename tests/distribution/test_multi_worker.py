"""Several workers train as one device does, and fail together."""

import concurrent.futures
import functools
import re
import socket

import numpy as np
import pytest

from keras_tfopt import distribution
from keras_tfopt.distribution.peers import wait_for_peers
from keras_tfopt.launcher import Cluster
from keras_tfopt.launcher import local_cluster
from tests import subprocesses
from tests.distribution.workers import cases
from tests.distribution.workers.place import Place


def free_addresses(count):
    return list(local_cluster(count).addresses)


def tf_config(addresses, index):
    return Cluster(tuple(addresses), 0, len(addresses)).tf_config(index)


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    """Returns what groups of two and of three workers leave, by their size."""
    folder = tmp_path_factory.mktemp("groups")
    process = subprocesses.run_python(
        *("-m", "tests.distribution.workers.groups", "cases", str(folder)),
        TF_ENABLE_ONEDNN_OPTS="0",
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1] == "[[0, 0], [0, 0, 0]]"
    return folder


@functools.cache
def on_one_device(case):
    return case(Place())


def outcomes(groups, case, count):
    """Returns what a case left on each of some workers."""
    found = []
    for index in range(count):
        path = groups / str(count) / f"{case.__name__}-{index}.npz"
        arrays = np.load(path)
        named = {name.replace("|", "/"): arrays[name] for name in arrays}
        assert "error" not in named, str(named.get("error"))
        found.append(named)
    return found


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("case", "count"),
    [
        *((case, 2) for case in cases.ON_TWO),
        *((case, 3) for case in cases.ON_THREE),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_workers_equal_one_device(groups, case, count, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = on_one_device(case)
    for found in outcomes(groups, case, count):
        for key, wanted in expected.items():
            # Keras names the slots of an inner optimizer by where it is built.
            key = key.replace(":loss_scale_optimizer/adam_w/", ":adam_w/")
            scale = max(1.0, float(np.max(np.abs(wanted), initial=0)))
            np.testing.assert_allclose(
                found[key], wanted, rtol=0, atol=1e-6 * scale, err_msg=key
            )


@pytest.mark.distributed
def test_all_recover_from_a_shortage_on_one(groups):
    for found in outcomes(groups, cases.shortage, 2):
        sizes, steps = found["events"].tolist()
        # Parts of 5 rows; then two steps without a failure.
        assert sizes == [2, 1, 2]
        assert steps == [0, 0, 2]


@pytest.mark.distributed
def test_all_recover_from_a_real_shortage_on_one(groups):
    for found in outcomes(groups, cases.exhausted, 2):
        assert found["events"].tolist() == [16]


@pytest.mark.distributed
def test_all_raise_what_one_has_raised(groups):
    first, second = outcomes(groups, cases.failure, 2)
    # What TensorFlow makes of an error in a Python function.
    name = "InvalidArgumentError: injected"
    assert first["raised"].tolist() == second["raised"].tolist() == [name]
    for key in first.keys() - {"raised"}:
        np.testing.assert_array_equal(first[key], second[key])


@pytest.mark.distributed
def test_all_refuse_what_is_not_finite(groups):
    for found in outcomes(groups, cases.infinite, 2):
        assert found["bad"].tolist() == [1]


@pytest.mark.distributed
def test_what_workers_cannot_do_alike_is_refused(groups):
    for found in outcomes(groups, cases.refusals, 2):
        batch, same, *others = found["said"]
        assert "`train_on_batch`" in batch
        assert "AutoShardPolicy.OFF" in same and "Expected" in same
        assert ["PlanAhead", "StablePlan", "XLAPolicy"] == [
            re.search("Received: (.*?),", text)[1] for text in others
        ]


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
