"""Builds a driver library that stands in for NVIDIA's, and loads it."""

import ctypes
import functools
import pathlib
import shutil
import subprocess
import tempfile

import pynvml
import pytest

SOURCE = pathlib.Path(__file__).with_name("nvml.c")


@functools.cache
def build(*options: str) -> pathlib.Path:
    """Builds the library, once for all tests of a process.

    Args:
        *options: Strings for the compiler, such as `"-DPARTIAL"`.

    Returns:
        Path of `libnvidia-ml.so.1`.
    """
    if shutil.which("gcc") is None:
        pytest.skip("gcc is missing, which builds the stand-in for a driver")
    library = pathlib.Path(tempfile.mkdtemp()) / "libnvidia-ml.so.1"
    # TensorFlow brings functions of the same names into the process.
    options += ("-Wl,-Bsymbolic",)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", *options,
         "-o", str(library), str(SOURCE)],
        check=True,
    )  # fmt: skip
    return library


def load(monkeypatch, scenario="", *options):
    """Lets the bindings find the library, in a scenario of `nvml.c`."""
    monkeypatch.setenv("NVML_SCENARIO", scenario)
    library = ctypes.CDLL(str(build(*options)))
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    # Pointers into the library before.
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
