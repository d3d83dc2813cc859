import re
import time

import keras
import pytest

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from keras_tfopt.telemetry import session
from tests import builders
from tests import models
from tests.terminals import terminal

STATUS = r"microbatch 2 x 2 - host \d+\.\d [GM]iB - data wait \d+%"
ETA = r" - ETA \d+:\d\d"
BAR = r"3/3 ━+ \d+s \d+m?s/step - loss: \d\.\d{4}"
# Ends each change of the line under the bar.
RESTORED = b"\x1b8"


@pytest.fixture(autouse=True)
def fast_sampler(monkeypatch):
    monkeypatch.setattr(session, "_SAMPLE_SECONDS", 0.01)
    monkeypatch.setenv("TERM", "xterm")


class AwaitsFigures(keras.callbacks.Callback):
    """Lets no step begin before the console has a line of the one before."""

    def __init__(self, console):
        super().__init__()
        self.console = console

    def on_train_batch_begin(self, batch, logs=None):
        deadline = time.monotonic() + 60
        while self.model.train_function is not None and batch > 0:
            if "microbatch" in self.console._line:
                return
            assert time.monotonic() < deadline
            time.sleep(0.01)


def fit(console, *added, model=None, **kwargs):
    model = model or builders.stack(AccumModel, [], microbatch_size=2)
    x, y = builders.regression_data(rows=12)
    model.fit(
        x,
        y,
        batch_size=4,
        callbacks=[console, AwaitsFigures(console), *added],
        **{"epochs": 2, "verbose": 1, **kwargs},
    )


def console_logger(**kwargs):
    return callbacks.ConsoleLogger(interval_seconds=0.01, **kwargs)


@pytest.mark.parametrize("rows", [12, 4])
def test_line_under_the_bar(rows):
    with terminal(rows=rows) as shown:
        fit(console_logger())
    # Keras' own lines, and one of ours for each epoch, whole.
    expected = ["Epoch 1/2", BAR, STATUS + ETA]
    expected += ["Epoch 2/2", BAR, STATUS]
    screen = shown.screen()
    assert len(screen) == min(len(expected), rows - 1)
    for line, pattern in zip(screen, expected[-len(screen) :], strict=True):
        assert re.fullmatch(pattern, line), screen

    # While training, it stands under the bar, which is whole as well.
    pairs = [
        (bar, status)
        for screen in shown.screens(RESTORED)
        for bar, status in zip(screen, screen[1:], strict=False)
        if re.fullmatch(STATUS + ETA, status) and "━" in bar
    ]
    assert pairs
    assert all(re.match(r"[1-3]/3 ━+ ", bar) for bar, _ in pairs)


def test_bar_that_wraps_is_left_alone():
    with terminal(columns=30) as shown:
        fit(console_logger())
    assert RESTORED not in shown.written
    assert b"microbatch 2 x 2" in shown.written


def test_line_in_the_place_of_the_bar():
    with terminal() as shown:
        fit(console_logger(verbose=1), verbose=0)
    first, second = shown.screen()
    start = r"epoch {}/2 - 3/3 - loss: \d+\.\d{{4}} - "
    assert re.fullmatch(start.format(1) + STATUS + ETA, first)
    assert re.fullmatch(start.format(2) + STATUS, second)
    assert shown.written.count(b"\r\x1b[2K") >= 2


@pytest.mark.parametrize("verbose", [1, 2])
def test_file_gets_a_line_for_each_epoch(capsys, verbose):
    fit(console_logger(), verbose=verbose)
    printed = capsys.readouterr().out
    lines = [line.rpartition("\r")[2] for line in printed.split("\n")]
    # Each behind what Keras says of its epoch.
    expected = ["Epoch 1/2", ".*loss.*", STATUS + ETA]
    expected += ["Epoch 2/2", ".*loss.*", STATUS, ""]
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(pattern, line), lines


def test_dumb_terminal_is_a_file(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with terminal() as shown:
        fit(console_logger(), verbose=2)
    assert b"\x1b" not in shown.written
    assert shown.written.count(b"microbatch") == 2


@pytest.mark.parametrize(("verbose", "of_fit"), [("auto", 0), (0, 1)])
def test_says_nothing_where_it_shall_not(capsys, verbose, of_fit):
    model = builders.stack(AccumModel, [], microbatch_size=2)
    x, y = builders.regression_data(rows=12)
    console = callbacks.ConsoleLogger(verbose)
    model.fit(x, y, verbose=of_fit, callbacks=[console])
    assert "microbatch" not in capsys.readouterr().out


def test_interactive_logging_off_goes_to_the_log(capsys, caplog):
    caplog.set_level("INFO")
    keras.config.disable_interactive_logging()
    try:
        fit(console_logger(), verbose=2)
    finally:
        keras.config.enable_interactive_logging()
    assert capsys.readouterr().out == ""
    said = [m for m in caplog.messages if m.startswith("microbatch")]
    assert len(said) == 2


def test_output_that_fails_does_not_end_training(caplog):
    with terminal() as shown:
        console = console_logger()
        breaks = models.AtBatch(1, lambda model: break_line(console))
        fit(console, breaks)
    assert "Nothing is shown any more: gone" in caplog.text
    assert shown.written.count(b"Epoch") == 2


def break_line(console):
    def fail(*arguments):
        raise BrokenPipeError("gone")

    if console._live is not None:
        console._live.clear = console._live.show = fail


def test_exception_leaves_the_screen_alone():
    with terminal() as shown:
        console = console_logger()
        with pytest.raises(models.Interruption):
            fit(console, models.AtBatch(2, models.interrupt))
        written = len(shown.written)
        console._session.end()
    assert len(shown.written) - written < 200


@pytest.mark.parametrize("arguments", [{"verbose": 3}, {"interval_seconds": 0}])
def test_refuses(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=name):
        callbacks.ConsoleLogger(**arguments)
