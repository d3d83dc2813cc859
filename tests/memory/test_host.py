"""The host's memory, and the limits of the groups around a process."""

import logging
import pathlib
import resource

import pytest

from keras_tfopt.memory import absence
from keras_tfopt.memory import host

MIB = 2**20
GIB = 2**30
MEMINFO = "MemTotal: 33554432 kB\nMemFree: 1 kB\nMemAvailable: 16777216 kB\n"


class Machine:
    """Folders that look like `/proc` and the file system of the groups."""

    def __init__(self, folder: pathlib.Path):
        self.proc = folder / "proc"
        self.groups = folder / "cgroup"
        self.write("proc/self/statm", "9000 2560 300 1 0 5000 0\n")
        self.write("proc/meminfo", MEMINFO)

    def write(self, path, text):
        path = self.proc.parent / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def mount(self, path, kind="cgroup2", root="/", options="rw"):
        number = 0 if kind == "cgroup2" else 4
        controllers = "" if kind == "cgroup2" else "memory"
        self.write("proc/self/cgroup", f"{number}:{controllers}:{path}\n")
        self.write(
            "proc/self/mountinfo",
            "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
            f"33 22 0:30 {root} {self.groups} rw shared:9 - "
            f"{kind} cgroup {options}\n",
        )

    def read(self):
        return host.read_host_memory(self.proc)


@pytest.fixture
def machine(tmp_path, caplog):
    absence.report_absence.cache_clear()
    caplog.set_level(logging.INFO, "keras_tfopt")
    return Machine(tmp_path)


def test_a_group_within_groups(machine):
    machine.mount("/outer/inner")
    machine.write("cgroup/outer/inner/memory.max", "max\n")
    machine.write("cgroup/outer/memory.max", f"{4 * GIB}\n")
    machine.write("cgroup/outer/memory.current", f"{3 * GIB}\n")
    machine.write("cgroup/outer/memory.stat", f"anon 1\ninactive_file {GIB}\n")
    memory = machine.read()
    assert memory.limit_bytes == 4 * GIB
    assert memory.group_bytes == 2 * GIB
    assert memory.available_bytes == 16 * GIB
    assert memory.rss_bytes == 2560 * resource.getpagesize()
    assert memory.utilization_ratio == 0.5


def test_the_first_version_of_groups(machine):
    machine.mount("/job", kind="cgroup", options="rw,memory")
    machine.write("cgroup/job/memory.limit_in_bytes", f"{GIB}\n")
    machine.write("cgroup/job/memory.usage_in_bytes", f"{800 * MIB}\n")
    machine.write(
        "cgroup/job/memory.stat",
        f"inactive_file 1\ntotal_inactive_file {288 * MIB}\n",
    )
    machine.write("cgroup/memory.limit_in_bytes", "9223372036854771712\n")
    assert machine.read().limit_bytes == GIB
    assert machine.read().utilization_ratio == 0.5


@pytest.mark.parametrize(
    ("path", "root"),
    [
        # The path of the host, which the container does not see.
        ("/docker/abc", "/"),
        ("/docker/abc", "/docker/abc"),
        ("/", "/"),
    ],
)
def test_a_container_sees_its_own_group_as_the_root(machine, path, root):
    machine.mount(path, root=root)
    machine.write("cgroup/memory.max", f"{GIB}\n")
    memory = machine.read()
    assert memory.limit_bytes == GIB
    # What it used stands in files that are not there.
    assert memory.group_bytes is None
    assert memory.utilization_ratio == memory.rss_bytes / GIB


def test_no_group_has_a_limit(machine, caplog):
    machine.mount("/")
    machine.write("cgroup/memory.max", "max\n")
    for _ in range(2):
        memory = machine.read()
    assert memory.limit_bytes == 32 * GIB
    assert memory.group_bytes is None
    assert caplog.messages == ["No limits of control groups: no group has one"]


def test_a_system_without_groups(machine, caplog):
    memory = machine.read()
    assert memory.limit_bytes == 32 * GIB
    assert "No limits of control groups: " in caplog.text


def test_a_system_that_tells_nothing(tmp_path, caplog):
    absence.report_absence.cache_clear()
    caplog.set_level(logging.INFO, "keras_tfopt")
    assert host.read_host_memory(tmp_path) == host.HostMemory()
    assert host.HostMemory().utilization_ratio is None
    assert len(caplog.messages) == 3


def test_this_process():
    before = host.read_host_memory()
    if before.rss_bytes is None:
        pytest.skip("only Linux tells")
    held = bytearray(64 * MIB)
    held[::4096] = b"x" * len(held[::4096])
    after = host.read_host_memory()
    assert 48 * MIB < after.rss_bytes - before.rss_bytes < 160 * MIB
    assert after.rss_bytes < after.limit_bytes
    assert 0 < after.available_bytes < after.limit_bytes * 1024
