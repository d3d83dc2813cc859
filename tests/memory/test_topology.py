"""Connections are read through the real bindings, from a stand-in driver."""

import pytest

from keras_tfopt.memory import Driver
from keras_tfopt.memory.gpus import Gpu
from keras_tfopt.memory.nearest_gpus import nearest_gpus
from keras_tfopt.memory.topology import Link
from keras_tfopt.memory.topology import Topology
from keras_tfopt.memory.topology import cpus_near
from tests.nvml import library


@pytest.fixture
def read(monkeypatch):
    drivers = []

    def read(scenario):
        library.load(monkeypatch, scenario)
        drivers.append(Driver.open())
        return drivers[-1].topology()

    yield read
    for driver in drivers:
        driver.close()


def test_two_islands_of_nvlink(read):
    topology = read("islands")

    assert nearest_gpus(topology, 4) == (0, 1, 2, 3)
    row = [str(link) for link in topology.links[5]]
    assert row == ["SYS", "SYS", "SYS", "SYS", "NV1", "X", "NV1", "NV1"]


def test_sockets_without_nvlink(read):
    row = [str(link) for link in read("gpus=6").links[4]]
    assert row == ["SYS", "SYS", "SYS", "SYS", "X", "PHB"]


def topology_of(distances):
    """Returns GPUs with the given ancestors, each with all others."""
    gpus = tuple(Gpu(i, f"GPU-{i}") for i in range(len(distances)))
    links = tuple(tuple(Link(0, d) for d in row) for row in distances)
    return Topology(gpus, links)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, (0,)), (2, (1, 3)), (3, (1, 2, 3)), (4, (0, 1, 2, 3))],
)
def test_nearest(count, expected):
    topology = topology_of(
        [[0, 50, 50, 50], [50, 0, 20, 10], [50, 20, 0, 20], [50, 10, 20, 0]]
    )
    assert nearest_gpus(topology, count) == expected


def test_more_than_there_are():
    with pytest.raises(ValueError, match="count=2.*from 1 to 1"):
        nearest_gpus(topology_of([[0]]), 2)


def test_what_the_driver_does_not_tell_is_far():
    assert Link(0, None).distance > Link(0, 50).distance
    assert str(Link(0, None)) == "?"


def test_processors_of_the_socket(tmp_path):
    gpu = Gpu(0, "GPU-0", pci_address="0000:3b:00.0")
    assert cpus_near(gpu, tmp_path) is None
    (tmp_path / "0000:3b:00.0").mkdir()
    (tmp_path / "0000:3b:00.0" / "local_cpulist").write_text("0-15\n")
    assert cpus_near(gpu, tmp_path) == "0-15"
