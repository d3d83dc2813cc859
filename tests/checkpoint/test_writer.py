"""One backup at a time, in a thread that hurts nobody."""

import logging
import threading

import pytest

from keras_tfopt.checkpoint.writer import BackgroundWriter
from keras_tfopt.checkpoint.writer import wait_for_writers
from tests import subprocesses


def test_one_at_a_time():
    writer = BackgroundWriter()
    gate = threading.Event()
    done = []
    writer.submit(lambda: gate.wait() and done.append(1))
    assert writer.is_busy
    threading.Timer(0.2, gate.set).start()
    # Waits for the first.
    writer.submit(lambda: done.append(2))
    assert done[:1] == [1]
    writer.wait()
    assert done == [1, 2]
    assert not writer.is_busy


def test_without_a_thread():
    threads = []
    writer = BackgroundWriter(asynchronous=False)
    writer.submit(lambda: threads.append(threading.current_thread()))
    assert threads == [threading.current_thread()]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_failure_is_said_once(asynchronous, caplog):
    writer = BackgroundWriter(asynchronous)

    def fail():
        raise OSError("the mount is lost")

    with caplog.at_level(logging.WARNING, "keras_tfopt"):
        for work in (fail, fail, lambda: None, fail):
            writer.submit(work)
        writer.wait()
    said = [record.getMessage().split(":")[0] for record in caplog.records]
    assert said == ["A backup failed", "Backups succeed again.",
                    "A backup failed"]  # fmt: skip


def test_writers_that_nobody_holds_are_waited_for():
    done = []
    gate = threading.Event()
    BackgroundWriter().submit(lambda: gate.wait() and done.append(1))
    threading.Timer(0.1, gate.set).start()
    wait_for_writers()
    assert done == [1]


def test_a_process_ends_when_its_backup_is_written(tmp_path):
    source = f"""
import time
from keras_tfopt.checkpoint.writer import BackgroundWriter

def work():
    time.sleep(0.5)
    open({str(tmp_path / "done")!r}, "w").close()

BackgroundWriter().submit(work)
raise SystemExit(143)
"""
    assert subprocesses.run_python("-c", source).returncode == 143
    assert (tmp_path / "done").exists()
