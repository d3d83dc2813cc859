"""What the control groups around a process let it take of the memory."""

import dataclasses
import pathlib

from keras_tfopt.memory.absence import report_absence

# The first version says "no limit" with the largest number of whole pages.
_NO_LIMIT = 2**62


@dataclasses.dataclass(frozen=True)
class CgroupMemory:
    """The memory of the control groups around a process.

    Attributes:
        limit_bytes: Integer or `None`. The smallest limit of a group around the
            process; `None` where none has one.
        used_bytes: Integer or `None`. What the group with that limit keeps in
            memory, without file caches that the kernel can drop.
    """

    limit_bytes: int | None = None
    used_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class _Version:
    """Names of the files of one version of control groups."""

    filesystem: str
    limit: str
    used: str
    cache: str


_VERSIONS = (
    _Version("cgroup2", "memory.max", "memory.current", "inactive_file"),
    _Version(
        "cgroup",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


def read_cgroup_memory(proc: pathlib.Path) -> CgroupMemory:
    """Reads the limits of the control groups around this process.

    A group is bound by the groups around it, as far as they are visible: a
    container often sees no more than its own.

    Args:
        proc: Path. Where the kernel shows processes.

    Returns:
        `CgroupMemory`.
    """
    try:
        groups = (proc / "self/cgroup").read_text()
        mounts = (proc / "self/mountinfo").read_text()
    except OSError as error:
        report_absence("limits of control groups", str(error))
        return CgroupMemory()
    found = [
        (limit, folder, version)
        for version in _VERSIONS
        for folder in folders_around(groups, mounts, version.filesystem)
        if (limit := _limit(folder / version.limit)) is not None
    ]
    if not found:
        report_absence("limits of control groups", "no group has one")
        return CgroupMemory()
    limit, folder, version = min(found, key=lambda entry: entry[0])
    return CgroupMemory(limit, _used(folder, version))


def folders_around(
    groups: str, mounts: str, filesystem: str
) -> list[pathlib.Path]:
    """Returns the folders of the groups around a process, its own first.

    Args:
        groups: String. Content of `/proc/self/cgroup`.
        mounts: String. Content of `/proc/self/mountinfo`.
        filesystem: String. `"cgroup2"`, or `"cgroup"` for the first version.
    """
    path = _group_path(groups, filesystem)
    mount = _mount_of(mounts, filesystem)
    if path is None or mount is None:
        return []
    root, point = mount
    inside = pathlib.PurePosixPath(path)
    if inside.is_relative_to(root):
        inside = inside.relative_to(root)
    # A container may see its own group as the root, whatever its path says.
    parts = inside.parts if inside.parts[:1] != ("/",) else inside.parts[1:]
    return [
        point.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)
    ]


def _group_path(groups: str, filesystem: str) -> str | None:
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        is_it = (
            controllers == ""
            if filesystem == "cgroup2"
            else "memory" in controllers.split(",")
        )
        if is_it:
            return path
    return None


def _mount_of(mounts: str, filesystem: str) -> tuple[str, pathlib.Path] | None:
    """Returns root and mount point of the file system of the groups."""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind != filesystem:
            continue
        if kind == "cgroup" and "memory" not in options.split()[-1].split(","):
            continue
        fields = before.split()
        return fields[3], pathlib.Path(fields[4])
    return None


def _limit(path: pathlib.Path) -> int | None:
    """Returns the limit in a file, `None` where it sets none."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    if not text.isdecimal() or int(text) >= _NO_LIMIT:
        return None
    return int(text)


def _used(folder: pathlib.Path, version: _Version) -> int | None:
    try:
        used = int((folder / version.used).read_text())
        lines = (folder / "memory.stat").read_text().splitlines()
    except (OSError, ValueError) as error:
        report_absence("memory of the control group", str(error))
        return None
    statistics = dict(line.split(maxsplit=1) for line in lines)
    return max(used - int(statistics.get(version.cache, 0)), 0)
