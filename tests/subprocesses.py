"""Runs programs in processes of their own, whose environment a test chooses."""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import subprocess
import sys


def run_python(
    *arguments: str, **environment: str | None
) -> subprocess.CompletedProcess:
    """Runs the interpreter of the tests and captures what it prints.

    Variables given as `None` are taken out of the environment.
    """
    return _run(sys.executable, arguments, environment)


def run_source(source: str, **environment: str | None) -> str:
    """Runs Python code, expects it to succeed, and returns what it prints."""
    process = run_python("-c", source, **environment)
    assert process.returncode == 0, process.stderr
    return process.stdout


def run_cli(
    *arguments: str, **environment: str | None
) -> subprocess.CompletedProcess:
    """Runs the installed `keras-tfopt` and captures what it prints."""
    command = pathlib.Path(sys.executable).with_name("keras-tfopt")
    return _run(str(command), arguments, environment)


def _run(command, arguments, environment):
    merged = {**os.environ, **environment}
    return subprocess.run(
        [command, *arguments],
        env={name: text for name, text in merged.items() if text is not None},
        capture_output=True,
        text=True,
        timeout=600,
    )


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen]:
    """Runs the interpreter beside the test, and ends it with the block."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
