"""Runs Keras' own tests with our classes in the place of Keras'.

A first run with `--classes=keras` writes down which tests pass with the Keras
that is installed. Runs with `--classes=whole`, `1` and `2` (rows of a
micro-batch) take those tests and fail for each one that does not pass with our
classes, unless it is listed in `exceptions.py`. A listed test that passes fails
the run as well, and so does a run that never came through the guarded step.
"""

import pathlib
import sys
import types

import pytest

from tests.upstream.exceptions import LISTED

MODES = {"keras": None, "whole": None, "1": 1, "2": 2}


def pytest_addoption(parser):
    group = parser.getgroup("keras_tfopt")
    group.addoption(
        "--classes",
        choices=MODES,
        default="whole",
        help="keras, or ours with whole batches or micro-batches of 1 or 2",
    )
    group.addoption(
        "--passing",
        type=pathlib.Path,
        required=True,
        help="file with the names of the tests that pass with Keras' classes",
    )


def pytest_configure(config):
    import keras

    assert keras.backend.backend() == "tensorflow"
    # Keras' wheel has the tests and not the module that some import from.
    sys.modules["conftest"] = types.ModuleType("conftest")
    sys.modules["conftest"].skip_if_backend = skip_if_backend
    mode = config.getoption("classes")
    plugin = Recorder() if mode == "keras" else Replacer(mode)
    config.pluginmanager.register(plugin, "upstream")


def skip_if_backend(given_backend, reason):
    """Skips a test if it cannot run with the backend of that name."""
    return pytest.mark.skipif(given_backend == "tensorflow", reason=reason)


def name_of(item):
    """Returns a name of a test that no path of this machine is part of."""
    return f"{item.module.__name__}::{item.nodeid.partition('::')[2]}"


class Recorder:
    """Writes down the tests that pass."""

    def __init__(self):
        self._names = {}
        self._passed = set()

    def pytest_itemcollected(self, item):
        self._names[item.nodeid] = name_of(item)

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            self._passed.add(self._names[report.nodeid])
        elif report.failed:
            self._passed.discard(self._names[report.nodeid])

    def pytest_sessionfinish(self, session, exitstatus):
        if exitstatus > pytest.ExitCode.TESTS_FAILED:
            return
        lines = "".join(f"{name}\n" for name in sorted(self._passed))
        session.config.getoption("passing").write_text(lines)
        # What fails with Keras' own classes is not for us to judge.
        session.exitstatus = pytest.ExitCode.OK


class Replacer:
    """Runs the tests that pass with Keras' classes with ours."""

    def __init__(self, mode):
        from tests.upstream.replacement import Replacement

        self._mode = mode
        self._replacement = Replacement(MODES[mode])
        self._replacement.begin_imports()

    def pytest_collection_modifyitems(self, config, items):
        self._replacement.end_imports()
        passing = set(config.getoption("passing").read_text().splitlines())
        unknown = [item for item in items if name_of(item) not in passing]
        config.hook.pytest_deselected(items=unknown)
        items[:] = [item for item in items if name_of(item) in passing]
        reasons = {
            listed.test: listed.reason
            for listed in LISTED
            if self._mode in listed.modes
        }
        for item in items:
            reason = reasons.get(name_of(item))
            if reason:
                # A listed test that passes fails, which keeps the list short.
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))

    def pytest_sessionfinish(self, session, exitstatus):
        if not self._steps and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        counts = self._replacement.counts
        write = terminalreporter.write_line
        terminalreporter.section(f"our classes, {self._mode}")
        if not self._steps:
            write("FAILED: our classes ran no step as this run is meant to.")
        write(f"{counts.split} split steps through the guarded step")
        write(f"{counts.whole} whole steps through the guarded step")
        write(f"{counts.evaluation} evaluation steps through the guarded step")
        write(f"{counts.keras_functions} training functions made by Keras")
        write(f"{counts.refusals.total()} models that could not be split")
        for reason, number in counts.refusals.most_common():
            write(f"{number:5d} {reason}")

    @property
    def _steps(self):
        """Training steps of the kind that the run is about."""
        counts = self._replacement.counts
        return counts.whole if MODES[self._mode] is None else counts.split
