"""Workers that are signalled and killed, and go on as if they had not been."""

import json
import sys

import numpy as np
import pytest

from keras_tfopt.launcher import LaunchSettings
from keras_tfopt.launcher import launch
from keras_tfopt.launcher import local_cluster
from tests import subprocesses
from tests.distribution.workers import runs
from tests.distribution.workers.place import Place


@pytest.fixture(scope="module")
def attempts(tmp_path_factory):
    """Returns the folder of a training that was interrupted, and its codes."""
    folder = tmp_path_factory.mktemp("attempts")
    process = subprocesses.run_python(
        *("-m", "tests.distribution.workers.groups", "attempts", str(folder))
    )
    assert process.returncode == 0, process.stderr
    return folder, json.loads(process.stdout.splitlines()[-1])


@pytest.mark.distributed
def test_exit_codes_of_interrupted_workers(attempts):
    _, found = attempts
    # A signal to one stops all; who loses a peer says so.
    assert found["codes"] == [[143, 143], [-9, 75], [0, 0]]


@pytest.mark.distributed
def test_workers_stop_at_the_same_step(attempts):
    _, found = attempts
    assert found["backups"][0] == [[0, 3], [0, 3]]


@pytest.mark.distributed
def test_interrupted_workers_end_as_if_nothing_had_happened(attempts):
    folder, _ = attempts
    for index in range(2):
        arrays = np.load(folder / f"{index}.npz")
        names = [n for n in arrays if n.startswith("expected|")]
        assert len(names) > 10
        for name in names:
            np.testing.assert_array_equal(
                arrays[name.replace("expected", "actual", 1)],
                arrays[name],
                err_msg=name,
            )


@pytest.mark.distributed
def test_backup_is_for_as_many_workers(attempts):
    folder, _ = attempts
    with pytest.raises(ValueError, match="2 workers for 1.*Expected: as many"):
        runs.train(Place(), folder / "copy")


@pytest.mark.distributed
def test_launched_workers_go_on_after_a_kill(tmp_path):
    lines = []
    settings = LaunchSettings(
        [
            *(sys.executable, "-m", "tests.distribution.workers.launched"),
            str(tmp_path),
        ],
        lambda: local_cluster(2),
        max_restarts=1,
        grace_seconds=120.0,
    )
    code = launch(settings, lambda *line: lines.append(line))
    assert code == 0, lines
    expected = runs.train_simply(Place())
    for index in range(2):
        found = np.load(tmp_path / f"{index}-1.npz")
        for name, wanted in expected.items():
            np.testing.assert_allclose(
                found[name.replace("/", "|")], wanted, rtol=1e-6, atol=1e-6
            )
    # The one that was left ended by itself before it was told to.
    assert (0, "exit code 75") in lines
