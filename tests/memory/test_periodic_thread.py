"""A thread that works every few seconds, and always comes to its end."""

import threading

from keras_tfopt.memory.periodic_thread import PeriodicThread

SOON = 0.001
PATIENCE = 20


class Work:
    """Counts its calls, and can be waited for."""

    def __init__(self, error=None):
        self.calls = 0
        self.error = error
        self.changed = threading.Condition()
        self.ended = threading.Event()

    def __call__(self):
        with self.changed:
            self.calls += 1
            self.changed.notify_all()
        if self.error is not None:
            raise self.error

    def wait_for(self, calls):
        with self.changed:
            return self.changed.wait_for(lambda: self.calls >= calls, PATIENCE)


def started(work, interval=SOON, is_wanted=lambda: True):
    thread = PeriodicThread(
        work, interval, is_wanted, "test thread", work.ended.set
    )
    thread.start()
    return thread


def test_works_at_once_in_intervals_and_at_the_end():
    work = Work()
    thread = started(work, interval=1000)
    assert work.wait_for(1)
    thread.stop()
    assert work.calls == 2
    assert work.ended.is_set()
    assert not thread.is_alive

    work = Work()
    thread = started(work)
    assert work.wait_for(5)
    thread.stop()
    # Stopping again is no harm.
    thread.stop()


def test_ends_when_it_is_not_wanted():
    work = Work()
    started(work, is_wanted=lambda: work.calls < 3)
    assert work.ended.wait(PATIENCE)
    assert work.calls == 3


def test_goes_on_after_an_exception_and_says_so_once(caplog):
    work = Work(error=OSError("no disk"))
    thread = started(work)
    assert work.wait_for(4)
    thread.stop()
    assert len(caplog.records) == 1
    assert "test thread fails, and keeps trying" in caplog.text
    assert "no disk" in caplog.text


def test_is_a_daemon():
    work = Work()
    thread = started(work, interval=1000)
    (found,) = [t for t in threading.enumerate() if t.name == "test thread"]
    assert found.daemon
    thread.stop()
