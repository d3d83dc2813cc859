"""Work in processes of its own, under a memory limit that they start with."""

import json
import os
import subprocess
import sys
from typing import Any


def run_under_limit(
    module: str, arguments: list[str], limit_mib: int | None
) -> Any:
    """Runs a module in a process and returns what it wrote as JSON.

    TensorFlow takes a limit only when it starts. What the process writes to the
    error stream is shown as it comes.

    Args:
        module: String. Name of the module.
        arguments: List of strings for it.
        limit_mib: Integer or `None`. What a CPU's allocator may hand out.

    Returns:
        The last line that the process wrote, as JSON.
    """
    environment = {**os.environ, **limited_environment(limit_mib)}
    process = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(process.stdout.splitlines()[-1])


def limited_environment(limit_mib: int | None) -> dict[str, str]:
    """Returns variables that give a process a CPU whose memory is counted.

    Args:
        limit_mib: Integer or `None`. What the allocator may hand out.
    """
    environment = {
        # An allocator that fails would write a map of its blocks.
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3"),
        "TF_CPU_ALLOCATOR_USE_BFC": "true",
        # Kernels of oneDNN crash where an allocation fails.
        "TF_ENABLE_ONEDNN_OPTS": "0",
    }
    if limit_mib is not None:
        environment["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(limit_mib)
    return environment


def answer(value: Any) -> None:
    """Writes what `run_under_limit` returns in the process that asked."""
    sys.stdout.write(json.dumps(value) + "\n")
