"""What files, configurations and the network can make of a training."""

import ast
import pathlib
import pickle

import keras
import numpy as np
import pytest

from keras_tfopt import ConfigurationError
from keras_tfopt import Optimization
from keras_tfopt import callbacks
from keras_tfopt import launcher
from keras_tfopt.checkpoint.generations import Generations
from keras_tfopt.telemetry.dashboards import write_dashboards
from tests import models

PACKAGE = pathlib.Path(__file__).parents[1] / "keras_tfopt"
UNPICKLING = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
RUNNING = {"compile", "eval", "exec", "__import__"}


def dangers(source):
    """Returns what could run code that is data, in the order of the lines."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name in UNPICKLING]
        elif isinstance(node, ast.ImportFrom) and node.module in UNPICKLING:
            found.append(node.module)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            keywords = {word.arg for word in node.keywords}
            if name in RUNNING or name.startswith(("yaml.load", "yaml.unsafe")):
                found.append(name)
            found += keywords & {"allow_pickle", "shell"}
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "eval(text)",
        "yaml.load(text)",
        "np.load(path, allow_pickle=True)",
        "subprocess.run(text, shell=True)",
    ],
)
def test_dangers_are_found(source):
    assert dangers(source)


def test_no_file_unpickles_or_runs_data():
    found = {
        path.relative_to(PACKAGE).as_posix(): dangers(path.read_text())
        for path in PACKAGE.rglob("*.py")
    }
    assert {path: what for path, what in found.items() if what} == {}


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self.path,)


def test_a_backup_that_is_a_pickle_is_skipped(tmp_path):
    folder = tmp_path / "backups"
    generations = Generations(str(folder), 2)
    generations.write({"step": 1}, {"values": np.arange(3)}, "run")
    trap = pickle.dumps(Trap(tmp_path / "trapped"))
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        path.write_bytes(trap)

    assert generations.latest() is None
    assert files
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:pathlib.Path.touch [trapped]",
        "!!python/object/new:os.system ['touch trapped']",
        "!!python/name:os.system",
    ],
)
def test_yaml_runs_nothing(value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.yml"
    path.write_text(
        f"tensorflow_optimization:\n  checkpoint:\n    dir: {value}\n"
    )

    with pytest.raises(ConfigurationError, match="(?s)run.yml.*python/"):
        Optimization.from_yaml(path)
    assert not (tmp_path / "trapped").exists()


def test_variables_in_yaml_are_no_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.yml"
    path.write_text(
        'tensorflow_optimization: {checkpoint: {dir: "$(touch trapped)"}}'
    )

    run = Optimization.from_yaml(path)

    assert run.configuration.checkpoint.dir == "$(touch trapped)"
    assert not (tmp_path / "trapped").exists()


def test_metrics_are_served_to_this_host_alone():
    listening = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            lines = pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]
            addresses = [line.split()[1].split(":") for line in lines]
            listening.extend(
                address
                for address, port in addresses
                if int(port, 16) == exporter.port
            )

    exporter = callbacks.PrometheusExporter(port=0)
    models.fit(models.regressor(keras.Model), callbacks=[exporter, Look()])

    # 127.0.0.1, in the order of the bytes.
    assert set(listening) == {"0100007F"}


def test_workers_and_dashboards_stay_on_this_host(tmp_path):
    assert all(
        address.startswith("127.0.0.1:")
        for address in launcher.local_cluster(3).addresses
    )
    written = write_dashboards(tmp_path)
    assert "0.0.0.0" not in "".join(path.read_text() for path in written)
