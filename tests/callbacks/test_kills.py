"""A process that is killed at any instant and started again loses nothing."""

import json
import pathlib

import numpy as np
import pytest

from tests import subprocesses

SCRIPT = pathlib.Path(__file__).with_name("killed_training.py")
ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["plain", "accumulating"])
def test_equals_an_undisturbed_run_bit_for_bit(scenario, tmp_path):
    process = subprocesses.run_python(
        str(SCRIPT), scenario, str(tmp_path), "0", PYTHONPATH=str(ROOT)
    )
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout.splitlines()[-1])
    # Some of the kills tore a backup.
    assert report["died"] >= 4
    assert report["unfinished"] >= 1
    with (
        np.load(tmp_path / "expected.npz") as expected,
        np.load(tmp_path / "actual.npz") as actual,
    ):
        assert set(actual) == set(expected)
        for name in expected:
            np.testing.assert_array_equal(
                actual[name], expected[name], err_msg=name
            )
        # All rows of the plain scenario, and none twice in an epoch.
        if scenario == "plain":
            epochs = actual["ids"].reshape(-1, 62)
            assert all(sorted(epoch) == list(range(62)) for epoch in epochs)
    assert not (tmp_path / "backups").exists()
