"""Which GPU a number of TensorFlow means, for all that CUDA lets one say."""

import pytest

from keras_tfopt.memory.gpus import Gpu
from keras_tfopt.memory.gpus import MigInstance
from keras_tfopt.memory.gpus import pci_address
from keras_tfopt.memory.visible_gpus import LogicalGpu
from keras_tfopt.memory.visible_gpus import UnknownOrderError
from keras_tfopt.memory.visible_gpus import logical_gpus
from keras_tfopt.memory.visible_gpus import match_gpus
from keras_tfopt.memory.visible_gpus import visible_gpus

PARTS = (MigInstance("MIG-aaa1", 7, 0), MigInstance("MIG-aab2", 9, 1))
GPUS = tuple(
    Gpu(index, uuid, f"0000:{0x1A + index:02x}:00.0")
    for index, uuid in enumerate(["GPU-aa00", "GPU-ab11", "GPU-bb22"])
)
CUT = Gpu(1, "GPU-ab11", "0000:1b:00.0", None, PARTS, is_cut=True)
WITH_CUT = (GPUS[0], CUT, GPUS[2])
BY_PLACE = "PCI_BUS_ID"


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        (" ", []),
        ("NoDevFiles", []),
        ("-1", []),
        ("0", [0]),
        ("2,0", [2, 0]),
        (" 2 , 1 ", [2, 1]),
        # What ends the list: a negative number, one too large, no number.
        ("0,-1,1", [0]),
        ("1,3,0", [1]),
        ("1,,0", [1]),
        ("1,GPU-aa00", [1]),
        # CUDA reads the number at the start of an entry.
        ("1gpu,2", [1, 2]),
        ("+1", [1]),
        # A GPU that is named twice makes the list empty.
        ("0,1,0", []),
        ("GPU-ab11", [1]),
        ("GPU-bb22,GPU-aa00", [2, 0]),
        ("GPU-b", [2]),
        # A prefix of two GPUs means none, and ends the list.
        ("GPU-a", []),
        ("GPU-bb22,GPU-a,GPU-aa00", [2]),
        ("GPU-bb22,GPU-cc", [2]),
        ("GPU-bb22,0", [2]),
        ("GPU-aa00,GPU-aa", []),
        ("gpu-aa00", []),
    ],
)
def test_visible_devices(visible, expected):
    shown = visible_gpus(GPUS, visible, BY_PLACE)
    assert [entry.gpu.index for entry in shown] == expected


@pytest.mark.parametrize("order", [None, "FASTEST_FIRST"])
@pytest.mark.parametrize("visible", [None, "0", "1,0"])
def test_numbers_in_an_order_that_only_cuda_knows(visible, order):
    with pytest.raises(UnknownOrderError, match="PCI_BUS_ID"):
        visible_gpus(GPUS, visible, order)


@pytest.mark.parametrize("visible", ["", "-1", "7", "GPU-bb22", "MIG-x"])
def test_no_order_is_needed(visible):
    shown = visible_gpus(GPUS, visible, None)
    assert shown == visible_gpus(GPUS, visible, BY_PLACE)


@pytest.mark.parametrize("visible", [None, "0"])
def test_one_gpu_needs_no_order(visible):
    assert visible_gpus(GPUS[:1], visible, None)[0].gpu == GPUS[0]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("MIG-aaa1", "MIG-aaa1"),
        ("MIG-aab", "MIG-aab2"),
        ("MIG-aa", None),
        ("MIG-zz", None),
        ("MIG-GPU-ab11/9/1", "MIG-aab2"),
        ("MIG-GPU-ab11/9/0", None),
        # CUDA shows no more than one.
        ("MIG-aab2,MIG-aaa1", "MIG-aab2"),
    ],
)
def test_instances_of_a_cut_gpu(visible, expected):
    shown = visible_gpus(WITH_CUT, visible, None)
    assert [entry.uuid for entry in shown] == [expected] * bool(expected)


@pytest.mark.parametrize("visible", [None, "1", "GPU-ab11"])
def test_which_instance_cuda_chooses_is_unknown(visible):
    with pytest.raises(UnknownOrderError, match="MIG"):
        visible_gpus(WITH_CUT, visible, BY_PLACE)


def described(address):
    return f"device: 0, name: X, pci bus id: {address}, compute capability: 8.0"


@pytest.mark.parametrize(
    ("description", "visible", "order", "expected"),
    [
        # The place on the bus decides, whatever CUDA counts.
        (described("0000:1c:00.0"), None, None, GPUS[2].uuid),
        (described("0000:1C:00.0"), "2,0", BY_PLACE, GPUS[2].uuid),
        (described("0000:7f:00.0"), "2,0", BY_PLACE, None),
        ("", "2,0", BY_PLACE, GPUS[2].uuid),
        ("", "GPU-bb22", None, GPUS[2].uuid),
        ("", None, None, None),
        ("", "-1", None, None),
    ],
)
def test_a_device_of_tensorflow(description, visible, order, expected):
    device = LogicalGpu("GPU:0", 0, description)
    match = match_gpus([device], GPUS, visible, order)["GPU:0"]
    assert (None if match is None else match.uuid) == expected


@pytest.mark.parametrize(
    ("parts", "visible", "expected"),
    [
        (PARTS, "MIG-aab2", "MIG-aab2"),
        (PARTS, "1", None),
        (PARTS, None, None),
        (PARTS[:1], None, "MIG-aaa1"),
        ((), None, None),
    ],
)
def test_a_device_of_tensorflow_on_a_cut_gpu(parts, visible, expected):
    cut = Gpu(1, CUT.uuid, CUT.pci_address, None, parts, is_cut=True)
    device = LogicalGpu("GPU:0", 0, described(CUT.pci_address))
    gpus = (GPUS[0], cut, GPUS[2])
    match = match_gpus([device], gpus, visible, BY_PLACE)["GPU:0"]
    assert (None if match is None else match.uuid) == expected


def test_parts_of_one_gpu_are_that_gpu():
    # TensorFlow was told to see the second GPU, twice, and then the first.
    devices = logical_gpus({1: 2, 0: 1}, {})
    assert [device.name for device in devices] == ["GPU:0", "GPU:1", "GPU:2"]
    matches = match_gpus(devices, GPUS, "2,0", BY_PLACE)
    assert [match.gpu.index for match in matches.values()] == [0, 0, 2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        (described("0000:3b:00.0"), "0000:3b:00.0"),
        ("00010000:AF:1f.7", "10000:af:1f.7"),
        ("no address", None),
        ("", None),
    ],
)
def test_pci_address(text, expected):
    assert pci_address(text) == expected
