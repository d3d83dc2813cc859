"""Keeps tests that divide the CPU out of the process of all others."""

import pathlib

FOLDER = pathlib.Path(__file__).parent
# Each asks for its own number of CPUs.
DIVIDED = [FOLDER / "replicated", FOLDER / "sharded"]


def pytest_ignore_collect(collection_path, config):
    """Collects them only if they are asked for by their folder."""
    for folder in DIVIDED:
        if folder in (collection_path, *collection_path.parents):
            is_asked_for = any(folder.name in one for one in config.args)
            return None if is_asked_for else True
    return None
