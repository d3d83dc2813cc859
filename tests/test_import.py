"""What `import keras_tfopt` may do to the process that imports it."""

from importlib import metadata
import json

import pytest

import keras_tfopt
from keras_tfopt import _version
from tests import subprocesses

CHANGES_OF_THE_PROCESS = """
import json, os, pathlib, sys, threading

def state():
    tasks = pathlib.Path("/proc/self/task")
    return {
        "environment": dict(os.environ),
        "python threads": threading.active_count(),
        "threads": len(list(tasks.iterdir())) if tasks.exists() else 0,
    }

def packages():
    names = {name.partition(".")[0] for name in sys.modules}
    return names - set(sys.stdlib_module_names)

import keras, tensorflow as tf
before = state()
loaded = packages()
import keras_tfopt
after = state()
print(json.dumps([before, after, sorted(packages() - loaded)]))
"""

CONFIGURES_DEVICES_AFTER_THE_IMPORT = """
import keras_tfopt
import tensorflow as tf

cpu, = tf.config.list_physical_devices("CPU")
halves = [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
tf.config.set_logical_device_configuration(cpu, halves)
tf.config.threading.set_intra_op_parallelism_threads(1)
print(len(tf.config.list_logical_devices("CPU")))
"""

NOT_NEEDED = {
    "matplotlib",
    "pydantic",
    "prometheus_client",
    "pynvml",
    "rich",
    "sklearn",
    "tensorboard",
    "typer",
    "yaml",
}
IMPORTS_WITHOUT_THEM = (
    f"NAMES = {NOT_NEEDED}"
    + """
import sys
import keras, tensorflow

class Absent:
    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] in NAMES:
            raise ModuleNotFoundError(fullname, name=fullname)

# Keras itself imports some of them.
for loaded in list(sys.modules):
    if loaded.partition(".")[0] in NAMES:
        del sys.modules[loaded]
sys.meta_path.insert(0, Absent())
import keras_tfopt
"""
)


def test_import_changes_no_environment_and_loads_no_library():
    printed = subprocesses.run_source(CHANGES_OF_THE_PROCESS)
    before, after, packages = json.loads(printed)
    assert after == before
    # Not a library more than TensorFlow and Keras have loaded by themselves.
    assert packages == ["keras_tfopt"]


def test_devices_can_be_configured_after_the_import():
    printed = subprocesses.run_source(CONFIGURES_DEVICES_AFTER_THE_IMPORT)
    assert printed.split() == ["2"]


def test_import_needs_only_tensorflow_and_keras():
    subprocesses.run_source(IMPORTS_WITHOUT_THEM)


@pytest.mark.parametrize(
    "name", ["AccumMixin", "AccumModel", "ExecutionPlan", "Optimization"]
)
def test_public_name_exists(name):
    assert getattr(keras_tfopt, name).__name__ == name


def test_version_is_the_installed_one():
    assert _version.__version__ == metadata.version("keras-tfopt")
