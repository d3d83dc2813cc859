"""Groups of real processes: ended, killed, signalled and started again."""

import io
import json
import os
import pathlib
import signal
import sys
import textwrap
import threading
import time

import pytest

from keras_tfopt.launcher import LaunchSettings
from keras_tfopt.launcher import cluster
from keras_tfopt.launcher import launch
from keras_tfopt.launcher.launch import exit_code
from keras_tfopt.launcher.log import WorkerLog


class Launched:
    """Runs a script as a group and keeps its lines."""

    def __init__(self, directory):
        self.directory = directory
        self.lines = []

    def __call__(self, source, workers=2, parameter_servers=0, **settings):
        script = self.directory / "script.py"
        header = """
            import json, os, pathlib, signal, sys, time
            job, index = (
                json.loads(os.environ["TF_CONFIG"])["task"][key]
                for key in ("type", "index")
            )
            restarts = int(os.environ["KERAS_TFOPT_RESTARTS"])
        """
        script.write_text(textwrap.dedent(header) + textwrap.dedent(source))
        defaults = {"grace_seconds": 20.0, "restart_delay_seconds": 0.0}
        made = LaunchSettings(
            [sys.executable, str(script)],
            lambda: cluster.local_cluster(workers, parameter_servers),
            **{**defaults, **settings},
        )
        return launch(made, lambda *line: self.lines.append(line))


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Launched(tmp_path)


def test_each_worker_knows_its_place(run):
    code = run("print(os.environ['TF_CONFIG'])", workers=3)

    assert code == 0
    configs = {index: json.loads(line) for index, line in run.lines}
    assert sorted(configs) == [0, 1, 2]
    for index, config in configs.items():
        assert config["task"]["index"] == index
        assert config["cluster"] == configs[0]["cluster"]


def test_failure_ends_the_others(run):
    started = time.monotonic()
    code = run(
        """
        if index == 1:
            sys.exit(3)
        time.sleep(60)
        """,
        grace_seconds=0.5,
    )
    assert code == 3
    assert time.monotonic() - started < 30


def test_worker_that_ignores_the_request_is_killed(run):
    code = run(
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pathlib.Path(f"ready{index}").touch()
        while not all(pathlib.Path(f"ready{i}").exists() for i in (0, 1)):
            time.sleep(0.01)
        if index == 1:
            sys.exit(3)
        time.sleep(60)
        """,
        grace_seconds=0.3,
    )
    assert code == 3


def test_others_may_finish_after_a_failure(run):
    run(
        """
        if index == 1:
            sys.exit(3)
        time.sleep(0.3)
        pathlib.Path("saved").touch()
        """
    )
    assert pathlib.Path("saved").exists()


def test_group_starts_again_after_a_kill(run):
    code = run(
        """
        print("run", restarts)
        if restarts < 2 and index == restarts:
            os.kill(os.getpid(), signal.SIGKILL)
        if restarts < 2:
            time.sleep(60)
        """,
        grace_seconds=0.3,
        max_restarts=3,
    )
    assert code == 0
    # Three runs of two workers; the last one is not repeated.
    assert {line for _, line in run.lines} >= {"run 2"}
    assert (0, "run 3") not in run.lines


def test_restarts_have_an_end(run):
    code = run("print(restarts); sys.exit(9)", workers=1, max_restarts=2)
    assert code == 9
    assert [line for _, line in run.lines] == ["0", "1", "2"]


def test_signals_are_passed_on_and_end_restarts(run):
    def interrupt():
        while not all(pathlib.Path(f"ready{i}").exists() for i in (0, 1)):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt, daemon=True).start()
    code = run(
        """
        def stop(number, frame):
            print("got", number)
            sys.exit(143)
        signal.signal(signal.SIGTERM, stop)
        pathlib.Path(f"ready{index}").touch()
        time.sleep(60)
        """,
        max_restarts=5,
    )
    assert code == 143
    assert sorted(run.lines) == [(0, "got 15"), (1, "got 15")]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_processes_that_a_worker_started_end_with_it(run):
    run(
        """
        import subprocess
        child = subprocess.Popen([sys.executable, "-c",
                                  "import time; time.sleep(60)"])
        pathlib.Path(f"child{index}").write_text(str(child.pid))
        """
    )
    for index in (0, 1):
        pid = int(pathlib.Path(f"child{index}").read_text())
        deadline = time.monotonic() + 10
        while is_alive(pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not is_alive(pid)


def is_alive(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    # A dead child whose parent has not asked is none that runs.
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_gpus_are_shared(run):
    code = run(
        "print(os.environ['CUDA_VISIBLE_DEVICES'])",
        gpus=["0", "1", "2", "3"],
    )
    assert code == 0
    assert sorted(run.lines) == [(0, "0,1"), (1, "2,3")]


def test_coordinator_goes_on_while_a_worker_starts_again(run):
    code = run(
        """
        if job == "chief":
            while not pathlib.Path("back").exists():
                time.sleep(0.01)
            print("trained", restarts)
            sys.exit()
        if (job, index) == ("worker", 1):
            if pathlib.Path("dead").exists():
                pathlib.Path("back").touch()
            else:
                pathlib.Path("dead").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
        """,
        parameter_servers=1,
        max_restarts=1,
        grace_seconds=0.3,
    )
    assert code == 0
    assert run.lines == [(0, "trained 0")]


def test_coordinator_goes_on_without_a_worker(run):
    code = run(
        """
        if job == "chief":
            while not pathlib.Path("dead").exists():
                time.sleep(0.01)
            time.sleep(0.5)
            print("trained")
            sys.exit()
        if (job, index) == ("worker", 1):
            pathlib.Path("dead").touch()
            sys.exit(3)
        time.sleep(60)
        """,
        parameter_servers=1,
        grace_seconds=0.1,
    )
    assert code == 0
    assert run.lines == [(0, "trained")]


@pytest.mark.parametrize("needed", ["chief", "ps", "worker"])
def test_what_a_coordinated_training_needs(run, needed):
    code = run(
        f"""
        if job == {needed!r}:
            sys.exit(3)
        time.sleep(60)
        """,
        workers=1,
        parameter_servers=1,
        grace_seconds=0.1,
    )
    assert code == 3


def test_output_is_prefixed_line_by_line():
    stream = io.StringIO()
    log = WorkerLog(stream)

    log(0, "Epoch 1/2")
    log(1, "\r1/4 loss 3\b\b\r4/4 loss 2")

    assert stream.getvalue().splitlines() == [
        "[worker 0] Epoch 1/2",
        "[worker 1] 1/4 loss 3\b\b",
        "[worker 1] 4/4 loss 2",
    ]


def test_exit_codes_are_those_of_shells():
    assert [exit_code(code) for code in (0, 5, -9, None)] == [0, 5, 137, 0]
