"""The pages of the documentation, built as readers get them."""

import pathlib
import subprocess
import sys

import pytest

from keras_tfopt import callbacks

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.slow
def test_builds_with_a_page_for_each_callback(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    process = subprocess.run(
        [*command, "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    assert process.returncode == 0, process.stdout + process.stderr
    for name in vars(callbacks):
        if name[0].isupper():
            page = tmp_path / "reference" / name / "index.html"
            # More than a title: the docstring, with its arguments.
            assert "Parameters:" in page.read_text(), name
    start = (tmp_path / "index.html").read_text()
    assert "Two commands" in start
