"""Prometheus' own programs, where they are installed."""

import shutil
import subprocess

import pytest

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is not installed (Debian package prometheus)",
)
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None,
    reason="prometheus is not installed (Debian package prometheus)",
)


def promtool(*arguments, text=None, directory=None):
    """Runs promtool, which must find nothing to complain of."""
    process = subprocess.run(
        ["promtool", *arguments],
        input=text,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = process.stdout + process.stderr
    assert process.returncode == 0, said
    return said
