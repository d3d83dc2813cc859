"""Keeps tests that divide the CPU out of the process of all others."""

import pathlib

DIVIDED = pathlib.Path(__file__).with_name("replicated")


def pytest_ignore_collect(collection_path, config):
    """Collects them only if they are asked for by their folder."""
    is_asked_for = any("replicated" in argument for argument in config.args)
    if DIVIDED in (collection_path, *collection_path.parents):
        return None if is_asked_for else True
    return None
