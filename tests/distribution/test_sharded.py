"""Runs the tests on four logical CPUs in a process of their own."""

import pathlib

import pytest

from tests import subprocesses


@pytest.mark.distributed
def test_in_a_process_of_their_own():
    folder = pathlib.Path(__file__).with_name("sharded")
    process = subprocesses.run_python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)
    )
    assert process.returncode == 0, process.stdout + process.stderr
