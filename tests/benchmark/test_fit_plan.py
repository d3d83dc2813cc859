"""The planner's command: what it loads, measures and draws."""

import io

import pytest
import rich.console

from keras_tfopt import ExecutionPlan
from keras_tfopt import MemoryPlan
from keras_tfopt.benchmark import fit_plan
from keras_tfopt.training.memory_probe import Probe
from tests import subprocesses

MIB = 2**20


def printed(renderable):
    console = rich.console.Console(file=io.StringIO(), width=120)
    console.print(renderable)
    return console.file.getvalue()


@pytest.mark.parametrize("share", [0, 0.25, 0.5, 1])
def test_a_bar_is_as_long_as_its_share(share):
    text = fit_plan.bar(share, mark=1, width=40)
    assert len(text) == 40
    assert text.count("█") == min(round(40 * share), 39)
    assert text[-1] == "┃"


def test_the_mark_stands_at_the_limit():
    assert fit_plan.bar(1, mark=0.5, width=40).index("┃") == 20


def test_the_table_holds_each_probe_in_order():
    probes = [Probe(8, 30 * MIB), Probe(4, 10 * MIB), Probe(6, 15 * MIB)]
    probes.append(Probe(5, 10 * MIB, remat=1))
    plan = ExecutionPlan(microbatch_size=6)
    found = MemoryPlan(plan, 20 * MIB, 0, probes, 1.0)
    text = printed(fit_plan.probes_table(found))
    rows = [line for line in text.splitlines() if "%" in line]
    assert [row.split()[1] for row in rows] == ["4", "6", "8", "5"]
    shares = [row.partition("%")[0].split()[-1] for row in rows]
    assert shares == ["50", "75", "150", "50"]
    assert ["remat" in row for row in rows] == [False, False, False, True]
    assert [row.count("█") for row in rows] == [11, 16, 31, 11]
    assert len({row.rindex("┃") for row in rows}) == 1
    assert "limit of 20.0 MiB" in text


@pytest.mark.slow
def test_the_command(tmp_path):
    picture = tmp_path / "plan.svg"
    process = subprocesses.run_cli(
        "fit-plan", "transformer", "--limit-mib", "30", "--svg", str(picture)
    )
    assert process.returncode == 0, process.stderr
    assert "microbatch_size=" in process.stdout
    assert "limit of 30.0 MiB" in process.stdout
    assert "<svg" in picture.read_text()
