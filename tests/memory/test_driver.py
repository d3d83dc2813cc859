"""The driver is read through the real bindings, from a library built here."""

import logging
import os

import pynvml
import pytest

from keras_tfopt.memory import Driver
from keras_tfopt.memory import DriverReading
from keras_tfopt.memory import absence
from keras_tfopt.memory import device_gpus
from keras_tfopt.memory.readings import MemoryReader
from keras_tfopt.memory.visible_gpus import LogicalGpu
from keras_tfopt.memory.visible_gpus import VisibleGpu
from keras_tfopt.memory.visible_gpus import match_gpus
from tests.nvml import library

GIB = 2**30
HALF = 2**29
GPU = "GPU-01111111-aaaa-bbbb-cccc-000000000000"
MIG = "MIG-12222222-aaaa-bbbb-cccc-000000000001"


@pytest.fixture
def log(caplog):
    """What was logged, from a process that has not logged it yet."""
    absence.report_absence.cache_clear()
    caplog.set_level(logging.INFO, "keras_tfopt")
    return caplog


@pytest.fixture
def open_driver(monkeypatch, log):
    """Opens the driver in a scenario, and closes it in the end."""
    drivers = []

    def open_driver(scenario="", *options):
        library.load(monkeypatch, scenario, *options)
        drivers.append(Driver.open())
        return drivers[-1]

    yield open_driver
    for driver in drivers:
        if driver is not None:
            driver.close()


def test_reads_everything_that_a_new_driver_tells(open_driver, log):
    driver = open_driver(f"gpus=2 pid={os.getpid()}")
    reading = driver.read(driver.gpus()[1].uuid)
    assert reading == DriverReading(
        total_bytes=16 * GIB,
        used_bytes=4 * GIB,
        free_bytes=16 * GIB - 4 * GIB - HALF,
        reserved_bytes=HALF,
        own_bytes=GIB,
        other_bytes=3 * GIB,
        utilization_ratio=0.75,
        memory_activity_ratio=0.4,
        temperature_celsius=61,
        power_watts=250.5,
        pcie_sent_bytes_per_second=1_000_000,
        pcie_received_bytes_per_second=2_000_000,
    )
    assert log.messages == []


def test_lists_gpus(open_driver):
    gpus = open_driver("gpus=2").gpus()
    assert [gpu.index for gpu in gpus] == [0, 1]
    assert gpus[0].uuid == GPU
    assert gpus[1].pci_address == "0000:1b:00.0"
    assert gpus[1].name == "Stand-in GPU"
    assert not gpus[0].is_cut


def test_lists_and_reads_instances_of_a_cut_gpu(open_driver):
    driver = open_driver("gpus=2 mig")
    cut, whole = driver.gpus()
    assert cut.is_cut and not whole.is_cut
    assert [part.gpu_instance for part in cut.instances] == [7, 8]
    assert cut.instances[1].uuid == MIG
    reading = driver.read(MIG)
    assert reading.total_bytes == 5 * GIB
    # Of an instance the driver knows no utilization.
    assert reading.utilization_ratio is None


def test_a_driver_that_knows_memory_in_its_first_version(open_driver, log):
    reading = open_driver("v1").read(GPU)
    assert reading.used_bytes == 4 * GIB + HALF
    assert reading.reserved_bytes is None
    assert f"No reserved memory of {GPU}: Argument Version" in log.text


def test_a_driver_without_newer_functions(open_driver, log):
    driver = open_driver(f"pid={os.getpid()}", "-DPARTIAL")
    (gpu,) = driver.gpus()
    for _ in range(2):
        reading = driver.read(gpu.uuid)
    assert reading.used_bytes == 4 * GIB + HALF
    assert reading.other_bytes == 3 * GIB
    assert reading.temperature_celsius == 61
    assert reading.reserved_bytes is None
    assert reading.pcie_sent_bytes_per_second is None
    assert not gpu.is_cut
    # Once each, though it was asked twice.
    assert log.messages == [
        f"No {what} of {GPU}: Function Not Found"
        for what in (
            "reserved memory",
            "bytes sent over PCIe",
            "bytes received over PCIe",
        )
    ]


def test_what_a_gpu_does_not_measure_is_absent(open_driver, log):
    reading = open_driver("unsupported").read(GPU)
    assert reading.power_watts is None
    assert reading.utilization_ratio is None
    assert reading.temperature_celsius == 61
    assert f"No power of {GPU}: Not Supported" in log.messages


@pytest.mark.parametrize(
    ("scenario", "reason"),
    [
        ("no_processes", "Not Supported"),
        # In a container the driver sees other numbers.
        ("pid=2", "does not know this process by its number"),
    ],
)
def test_parts_of_processes_are_not_guessed(open_driver, log, scenario, reason):
    reading = open_driver(scenario).read(GPU)
    assert (reading.own_bytes, reading.other_bytes) == (None, None)
    assert reading.used_bytes == 4 * GIB
    assert reason in log.text


def test_a_gpu_that_is_lost_in_mid_run(open_driver, log, monkeypatch):
    driver = open_driver(f"gpus=2 pid={os.getpid()}")
    first, second = driver.gpus()
    assert driver.read(first.uuid) is not None
    monkeypatch.setenv("NVML_LOST", "0")
    for _ in range(3):
        assert driver.read(first.uuid) is None
    assert driver.read(second.uuid).used_bytes == 4 * GIB
    assert log.messages == [
        f"No readings of the NVIDIA driver of {GPU}: NVML lost: GPU is lost"
    ]
    assert [gpu.index for gpu in driver.gpus()] == [1]


def test_a_driver_whose_kernel_part_is_missing(open_driver, log):
    assert open_driver("no_driver") is None
    assert log.messages == [
        "No readings of the NVIDIA driver: no NVIDIA driver (Driver Not Loaded)"
    ]


def test_a_machine_without_a_driver(monkeypatch, log):
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    driver = Driver.open()
    if driver is not None:
        driver.close()
        pytest.skip("this machine has a driver")
    assert "no NVIDIA driver (NVML Shared Library Not Found)" in log.text


def test_without_gpus_of_tensorflow_there_is_nothing_to_match(open_driver):
    driver = open_driver("gpus=2")
    if device_gpus.tf.config.list_logical_devices("GPU"):
        pytest.skip("TensorFlow sees a GPU that the stand-in does not know")
    assert device_gpus.gpus_of_devices(driver) == {}


def test_a_gpu_of_tensorflow_is_read_by_its_place_on_the_bus(open_driver):
    driver = open_driver("gpus=2 mig")
    cut, whole = driver.gpus()
    devices = [
        LogicalGpu("GPU:0", 0, f"pci bus id: {whole.pci_address}"),
        LogicalGpu("GPU:1", 1, f"pci bus id: {cut.pci_address}"),
    ]
    matches = match_gpus(devices, driver.gpus(), None, None)
    assert matches["GPU:1"] is None
    assert driver.read(matches["GPU:0"].uuid).total_bytes == 16 * GIB
    matches = match_gpus(devices[1:], driver.gpus(), MIG, None)
    assert driver.read(matches["GPU:1"].uuid).total_bytes == 5 * GIB


def test_readings_go_on_when_a_gpu_is_lost(open_driver, monkeypatch):
    reader = MemoryReader(["CPU:0"])
    # As if it were a GPU.
    reader._driver = driver = open_driver("gpus=1")
    reader._gpus = {"CPU:0": VisibleGpu(driver.gpus()[0])}
    (device,) = reader.read(step=1).devices
    assert device.driver.used_bytes == 4 * GIB
    monkeypatch.setenv("NVML_LOST", "0")
    reading = reader.read(step=2)
    (device,) = reading.devices
    assert device.driver is None
    assert reading.host.rss_bytes
    reader.close()


def test_the_islands_that_the_stand_in_shows(open_driver):
    driver = open_driver("islands")
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(8)]
    assert len(driver.gpus()) == 8
    near, far = (
        pynvml.nvmlDeviceGetTopologyCommonAncestor(handles[0], handles[other])
        for other in (3, 4)
    )
    assert near < far
    peers = {
        pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handles[5], link).bus - 0x1A
        for link in range(18)
        if pynvml.nvmlDeviceGetNvLinkState(handles[5], link)
    }
    assert peers == {4, 6, 7}
