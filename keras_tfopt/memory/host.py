"""What this process takes of the host's memory, and what it may take."""

import dataclasses
import os
import pathlib

from keras_tfopt.memory.absence import report_absence
from keras_tfopt.memory.cgroup import read_cgroup_memory

_PROC = pathlib.Path("/proc")


@dataclasses.dataclass(frozen=True)
class HostMemory:
    """Memory of the host, as one process sees it.

    Attributes:
        rss_bytes: Integer or `None`. What this process keeps in memory.
        group_bytes: Integer or `None`. What the control group of the process
            keeps in memory, workers included and file caches that can be
            dropped left out.
        available_bytes: Integer or `None`. What new work can get without
            swapping, by the kernel's estimate.
        limit_bytes: Integer or `None`. Where the kernel kills: the smallest
            limit of the control groups around the process, or all memory of
            the host.
    """

    rss_bytes: int | None = None
    group_bytes: int | None = None
    available_bytes: int | None = None
    limit_bytes: int | None = None

    @property
    def utilization_ratio(self) -> float | None:
        """Share of the limit that is taken, by what is larger of the two."""
        taken = [b for b in (self.rss_bytes, self.group_bytes) if b is not None]
        if not taken or not self.limit_bytes:
            return None
        return max(taken) / self.limit_bytes


def read_host_memory(proc: pathlib.Path = _PROC) -> HostMemory:
    """Reads the memory of the host, in less than a millisecond.

    What the kernel does not tell is `None`, and one INFO line in the log says
    why.

    Example:

    ```python
    from keras_tfopt.memory import read_host_memory

    host = read_host_memory()
    if host.utilization_ratio is not None:
        print(f"{host.utilization_ratio:.0%} of {host.limit_bytes} bytes")
    ```

    Args:
        proc: Path. Where the kernel shows processes. Defaults to `/proc`.

    Returns:
        `HostMemory`.
    """
    total, available = _system_bytes(proc)
    group = read_cgroup_memory(proc)
    limits = [limit for limit in (group.limit_bytes, total) if limit]
    return HostMemory(
        rss_bytes=_rss_bytes(proc),
        # Without a limit of its own a group may be all that runs on the host.
        group_bytes=group.used_bytes if group.limit_bytes else None,
        available_bytes=available,
        limit_bytes=min(limits, default=None),
    )


def _rss_bytes(proc: pathlib.Path) -> int | None:
    try:
        pages = int((proc / "self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError) as error:
        report_absence("resident memory of the process", str(error))
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _system_bytes(proc: pathlib.Path) -> tuple[int | None, int | None]:
    """Returns all memory of the host, and what is available of it."""
    try:
        lines = (proc / "meminfo").read_text().splitlines()
    except OSError as error:
        report_absence("memory of the host", str(error))
        return None, None
    kibibytes = {line.partition(":")[0]: line.split()[1] for line in lines}
    total, available = (
        int(kibibytes[name]) * 1024 if name in kibibytes else None
        for name in ("MemTotal", "MemAvailable")
    )
    return total, available
