"""Runs the tutorials from top to bottom."""

import pathlib

import nbclient
import nbformat
import pytest

NOTEBOOKS = sorted(
    (pathlib.Path(__file__).parents[1] / "notebooks").glob("*.ipynb")
)


def read(path):
    return nbformat.read(path, as_version=4)


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(path):
    for cell in read(path).cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path):
    client = nbclient.NotebookClient(
        read(path),
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
        timeout=300,
    )
    client.execute()
