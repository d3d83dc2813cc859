"""Faults in random sequences leave nothing of themselves in a training."""

import os
import pathlib

import numpy as np
import pytest

from tests import subprocesses

SCRIPT = pathlib.Path(__file__).with_name("disturbed_training.py")
ROOT = pathlib.Path(__file__).parents[2]
# Each sequence trains four times; the environment may ask for more of them.
SEQUENCES = int(os.environ.get("KERAS_TFOPT_SOAK_SEQUENCES", "1"))

# What the log must tell of each fault, some time in a soak.
SIGNS = {
    "whole": {
        "NaN": "loss nan",
        "XLA": "failed under XLA",
        "full disk": "No space left on device",
    },
}
SIGNS["split"] = {**SIGNS["whole"], "OOM": "out of memory with"}


def compare(scenario, folder):
    """Compares the last run of a sequence with the undisturbed one."""
    with (
        np.load(folder / "expected.npz") as expected,
        np.load(folder / "actual.npz") as actual,
    ):
        assert set(actual) == set(expected)
        for name in expected:
            tolerance = 0.0
            if scenario == "split":
                # Sums of doubles in another order; losses are tracked in
                # single precision.
                tolerance = 1e-6 if "loss" in name else 1e-12
                if "seed_generator" in name:
                    # The dropout counts calls where nobody counts steps.
                    continue
            np.testing.assert_allclose(
                actual[name],
                expected[name],
                rtol=tolerance,
                atol=tolerance,
                err_msg=f"{folder.name}, {name}",
            )


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SIGNS)
def test_equals_an_undisturbed_run(scenario, tmp_path, small_disk):
    seeds = [str(seed) for seed in range(SEQUENCES)]
    folder = tmp_path / "runs"
    folder.mkdir()

    process = subprocesses.run_python(
        str(SCRIPT),
        *(str(folder), str(small_disk), scenario, *seeds),
        PYTHONPATH=str(ROOT),
    )

    assert process.returncode == 0, process.stderr
    assert all(int(died) for died in process.stdout.split())
    for seed in seeds:
        compare(scenario, folder / seed)
    journal = "".join((folder / seed / "journal").read_text() for seed in seeds)
    for fault, sign in SIGNS[scenario].items():
        assert sign in journal, fault
