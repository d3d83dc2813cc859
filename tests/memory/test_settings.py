"""Settings of memory come in time, or are refused with the reason."""

import json

import pytest
import tensorflow as tf

from keras_tfopt.memory import MemorySettings
from keras_tfopt.memory.device_setting import device_settings
from keras_tfopt.memory.device_setting import parts_of
from tests import subprocesses

MIB = 2**20
GIB = 2**30


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"memory_growth": "yes"}, "memory_growth"),
        ({"memory_growth": 1}, "memory_growth"),
        ({"limit_bytes": 0}, "limit_bytes"),
        ({"limit_bytes": MIB - 1}, "limit_bytes"),
        ({"limit_bytes": {"GPU:0": -1}}, "limit_bytes"),
        ({"limit_bytes": 1.5 * GIB}, "limit_bytes"),
        ({"logical_devices": {"CPU:0": 0}}, "logical_devices"),
        ({"gpu_allocator": "malloc"}, "gpu_allocator"),
        ({"cpu_allocator": "malloc"}, "cpu_allocator"),
        ({"pinned_limit_bytes": 12}, "pinned_limit_bytes"),
        ({"inter_op_threads": 0}, "inter_op_threads"),
        ({"intra_op_threads": -1}, "intra_op_threads"),
    ],
    ids=str,
)
def test_bad_arguments(arguments, name):
    with pytest.raises(ValueError, match=f"argument `{name}.*Expected"):
        MemorySettings(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"memory_growth": True, "limit_bytes": GIB},
        {"memory_growth": True, "limit_bytes": {"GPU:1": GIB}},
        {"logical_devices": {"GPU:0": 2}},
        {"logical_devices": {"GPU:0": 2}, "limit_bytes": {"GPU:1": GIB}},
        {"cpu_allocator": "default", "limit_bytes": {"CPU:0": GIB}},
    ],
    ids=str,
)
def test_conflicts_are_refused(arguments):
    with pytest.raises(ValueError, match="Received: .* Expected: "):
        MemorySettings(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"memory_growth": False, "limit_bytes": GIB},
        {"memory_growth": True, "limit_bytes": {"CPU:0": GIB}},
        {"logical_devices": {"GPU:0": 2}, "limit_bytes": GIB},
        {"logical_devices": {"CPU:0": 2}},
    ],
    ids=str,
)
def test_what_is_no_conflict(arguments):
    MemorySettings(**arguments)


def test_the_environment_has_the_last_word(monkeypatch):
    monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", "false")
    with pytest.raises(ValueError, match="TF_FORCE_GPU_ALLOW_GROWTH=false"):
        MemorySettings(memory_growth=True).apply()


def test_a_limit_that_turns_out_to_be_that_of_a_cpu():
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("here it is that of a GPU")
    settings = MemorySettings(cpu_allocator="default", limit_bytes=GIB)
    with pytest.raises(ValueError, match="Only the allocator 'bfc'"):
        settings.apply()


def device(name):
    return tf.config.PhysicalDevice(
        f"/physical_device:{name}", name.partition(":")[0]
    )


DEVICES = [device(name) for name in ("CPU:0", "GPU:0", "GPU:1")]


@pytest.mark.parametrize(
    ("growth", "limits", "counts", "expected"),
    [
        (None, {}, {}, {}),
        (
            True,
            {},
            {},
            {"memory_growth of GPU:0": True, "memory_growth of GPU:1": True},
        ),
        (
            None,
            {"GPU:1": GIB},
            {"CPU:0": 2},
            {
                "logical devices of CPU:0, MiB": [None, None],
                "logical devices of GPU:1, MiB": [1024],
            },
        ),
        (
            False,
            {"GPU:0": GIB},
            {"GPU:0": 3},
            {
                "memory_growth of GPU:0": False,
                "memory_growth of GPU:1": False,
                "logical devices of GPU:0, MiB": [341, 341, 341],
            },
        ),
    ],
)
def test_settings_of_devices(growth, limits, counts, expected):
    settings = device_settings(DEVICES, growth, limits, counts)
    assert {s.name: s.wanted for s in settings} == expected


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="'GPU:7'.*'GPU:1'"):
        device_settings(DEVICES, None, {}, {"GPU:7": 1})


def test_parts():
    assert parts_of(None, 2) == [None, None]
    assert parts_of(GIB, 2) == [512, 512]
    assert parts_of(GIB + 5, 1) == [1024]


def test_too_late_is_refused_and_what_is_in_force_is_not(caplog):
    tf.ones(())
    with pytest.raises(RuntimeError, match="started its devices already"):
        MemorySettings(limit_bytes={"CPU:0": GIB}).apply()
    with pytest.raises(RuntimeError, match="inter_op_parallelism_threads=61"):
        MemorySettings(inter_op_threads=61).apply()
    MemorySettings().apply()
    if tf.config.list_physical_devices("GPU"):
        return
    caplog.set_level("INFO", "keras_tfopt")
    MemorySettings(memory_growth=True).apply()
    assert caplog.messages == [
        "memory_growth=True has no effect: TensorFlow sees no GPU."
    ]


IN_TIME = """
import json, os
import tensorflow as tf
from keras_tfopt import _compat
from keras_tfopt import memory

before = dict(os.environ)
settings = memory.MemorySettings(
    limit_bytes=64 * 2**20,
    logical_devices={"CPU:0": 2},
    gpu_allocator="cuda_malloc_async",
    pinned_limit_bytes=2**30,
    inter_op_threads=1,
    intra_op_threads=2,
)
settings.apply()
is_started = _compat.is_started()
changed = {k: v for k, v in os.environ.items() if before.get(k) != v}
settings.check_devices()
settings.apply()
try:
    tf.fill((2**26,), 1.0)
    error = None
except tf.errors.ResourceExhaustedError as raised:
    error = type(raised).__name__
try:
    memory.MemorySettings(intra_op_threads=1).apply()
    late = None
except RuntimeError as raised:
    late = str(raised)
print(json.dumps({
    "started": is_started,
    "changed": changed,
    "devices": [d.name for d in tf.config.list_logical_devices()],
    "threads": [
        tf.config.threading.get_inter_op_parallelism_threads(),
        tf.config.threading.get_intra_op_parallelism_threads(),
    ],
    "counts": memory.read_allocator_stats() is not None,
    "error": error,
    "late": late,
}))
"""


def test_in_time_they_are_in_force():
    printed = subprocesses.run_source(
        IN_TIME,
        CUDA_VISIBLE_DEVICES="",
        TF_CPU_ALLOCATOR_USE_BFC=None,
        TF_CPU_BFC_MEM_LIMIT_IN_MB=None,
        TF_GPU_ALLOCATOR=None,
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    result = json.loads(printed.splitlines()[-1])
    assert not result["started"]
    assert result["changed"] == {
        "TF_CPU_ALLOCATOR_USE_BFC": "true",
        "TF_CPU_BFC_MEM_LIMIT_IN_MB": "64",
        "TF_GPU_ALLOCATOR": "cuda_malloc_async",
        "TF_GPU_HOST_MEM_LIMIT_IN_MB": "1024",
    }
    assert result["devices"] == ["/device:CPU:0", "/device:CPU:1"]
    assert result["threads"] == [1, 2]
    assert result["counts"]
    assert result["error"] == "ResourceExhaustedError"
    assert "intra_op_parallelism_threads=1 after that" in result["late"]
