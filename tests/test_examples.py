"""Training scripts as people have them, and the same brought over."""

import difflib
import pathlib
import runpy

import keras
import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
NAMES = ("gan", "image_classifier", "text_classifier")
MOST_CHANGED_LINES = 5


def path_of(name):
    return EXAMPLES / f"{name}.py"


def changed_lines(name):
    """Returns the lines that differ, counted as an editor shows them."""
    before, after = (
        [line for line in path_of(each).read_text().splitlines() if line]
        for each in (name, f"{name}_with_tfopt")
    )
    differences = list(difflib.ndiff(before, after))
    added = sum(line.startswith("+ ") for line in differences)
    return added, sum(line.startswith("- ") for line in differences)


@pytest.mark.parametrize("name", NAMES)
def test_few_lines_change(name):
    added, removed = changed_lines(name)
    assert 0 < added <= MOST_CHANGED_LINES
    assert removed <= added


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_trains_as_before(name, tmp_path, monkeypatch):
    monkeypatch.setenv("BACKUP_DIR", str(tmp_path / "backup"))
    results = []
    for script in (path_of(name), path_of(f"{name}_with_tfopt")):
        keras.utils.clear_session()
        # Backups go where the script runs.
        with monkeypatch.context() as patch:
            patch.chdir(EXAMPLES.parent if name != "gan" else tmp_path)
            results.append(runpy.run_path(str(script))["main"](epochs=2))
    (stock, expected), (ours, history) = results

    assert history.keys() == expected.keys()
    for key, values in expected.items():
        np.testing.assert_allclose(history[key], values, atol=1e-5)
    for own, theirs in zip(ours.weights, stock.weights, strict=True):
        np.testing.assert_allclose(own, theirs, atol=1e-5)
