"""Free memory in pieces is seen, said, and moved together."""

import json
import logging

import keras
import numpy as np
import pytest

from keras_tfopt import callbacks
from keras_tfopt.callbacks import fragmentation_monitor
from keras_tfopt.memory import Compaction
from keras_tfopt.memory import Fragmentation
from tests import models
from tests import subprocesses
from tests.callbacks import fragmented_training


@pytest.mark.slow
def test_compaction_lets_a_step_succeed_that_a_retry_does_not():
    printed = subprocesses.run_python(
        "-m",
        fragmented_training.__name__,
        TF_CPU_ALLOCATOR_USE_BFC="true",
        TF_CPU_BFC_MEM_LIMIT_IN_MB=str(fragmented_training.LIMIT),
        TF_ENABLE_ONEDNN_OPTS="0",
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    assert printed.returncode == 0, printed.stderr
    found = json.loads(printed.stdout.splitlines()[-1])
    # The step, and the same step again.
    assert found["failures"] == 2
    assert found["moved"] and found["untouched"]
    for compactions in (found["remedy"], found["between"]):
        ((before, after),) = compactions
        assert before[0] > 0.8 and before[1] < 8 * 2**20
        assert after[0] < 0.2 and after[1] > 28 * 2**20
    needy, modest = fragmented_training.towers()
    fragmented_training.fit(modest)
    fragmented_training.fit(needy)
    for variable, value in zip(
        needy.trainable_variables, found["trained"], strict=True
    ):
        np.testing.assert_allclose(variable.numpy(), value, atol=1e-6)


def reading(ratio, utilization=0.9):
    limit = 1000
    return Fragmentation(limit, 500, int(utilization * limit),
                         int(500 * (1 - ratio)))  # fmt: skip


@pytest.fixture
def figures(monkeypatch):
    """Lets the monitor read given figures in the place of the allocator's."""
    ratios = []

    def parse(window, device):
        return ratios.pop(0) if len(ratios) > 1 else ratios[0]

    monkeypatch.setattr(fragmentation_monitor, "parse_probe", parse)
    return ratios


def fit(monitor, epochs=4):
    model = models.regressor(keras.Model)
    models.fit(model, callbacks=[monitor], batch_size=6, epochs=epochs)
    return model


def test_warns_once_until_it_is_worse(figures, caplog):
    figures += [reading(r) for r in (0.1, 0.3, 0.3, 0.35, 0.45, 0.1, 0.3)]
    with caplog.at_level(logging.WARNING, "keras_tfopt"):
        monitor = callbacks.FragmentationMonitor(interval_steps=1)
        fit(monitor)
    assert len(caplog.records) == 3
    assert "fragmentation 30%" in caplog.records[0].getMessage()
    assert "pad batches to few shapes" in caplog.text
    assert monitor.last_reading.ratio == pytest.approx(0.3)
    assert monitor.overhead_seconds > 0


def test_is_silent_where_little_is_in_use(figures, caplog):
    figures.append(reading(0.9, utilization=0.4))
    with caplog.at_level(logging.WARNING, "keras_tfopt"):
        fit(callbacks.FragmentationMonitor(interval_steps=1))
    assert not caplog.records


def test_what_does_not_help_becomes_rare(figures, monkeypatch, caplog):
    figures.append(reading(0.5))
    moves = []

    def compact(model, device):
        moves.append(int(model.optimizer.iterations))
        return Compaction(1, 0.1, reading(0.5), reading(0.5))

    monkeypatch.setattr(fragmentation_monitor, "compact_model", compact)
    with caplog.at_level(logging.WARNING, "keras_tfopt"):
        monitor = callbacks.FragmentationMonitor(1, on_breach="compact")
        fit(monitor)
    # After 1, 2, 4 and 8 steps; each of the 20 would be one without the waits.
    assert 3 <= len(moves) <= 5
    assert "not tried again for 4 steps" in caplog.text
    assert len(monitor.compactions) == len(moves)


def test_a_reading_that_fails_is_none(monkeypatch, caplog):
    def fail(window, device):
        raise ValueError("not a recording")

    monkeypatch.setattr(fragmentation_monitor, "parse_probe", fail)
    with caplog.at_level(logging.INFO, "keras_tfopt"):
        monitor = callbacks.FragmentationMonitor(interval_steps=1)
        fit(monitor)
    assert "not a recording" in caplog.text
    assert monitor.last_reading is None


def test_yields_to_another_profiler(tmp_path, caplog):
    profiler = keras.callbacks.TensorBoard(tmp_path, profile_batch=(3, 8))
    monitor = callbacks.FragmentationMonitor(interval_steps=1)
    model = models.regressor(keras.Model)
    with caplog.at_level(logging.INFO, "keras_tfopt"):
        models.fit(model, callbacks=[profiler, monitor], batch_size=2)
    assert "another profiler session runs" in caplog.text
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_gives_the_guard_back():
    model = fit(callbacks.FragmentationMonitor(on_breach="compact"))
    assert "make_train_function" not in vars(model)


def test_a_step_of_its_own_is_compacted_between_steps_only(caplog):
    class Own(keras.Model):
        def train_step(self, data):
            return super().train_step(data)

    model = models.compiled(models.network(Own))
    with caplog.at_level(logging.INFO, "keras_tfopt"):
        monitor = callbacks.FragmentationMonitor(on_breach="compact")
        models.fit(model, callbacks=[monitor])
    assert "between steps only" in caplog.text


@pytest.mark.parametrize(
    "arguments",
    [
        {"interval_steps": 0},
        {"interval_steps": None},
        {"max_ratio": 0},
        {"max_ratio": 1.0},
        {"min_utilization": 1},
        {"on_breach": "move"},
    ],
    ids=str,
)
def test_bad_arguments(arguments):
    with pytest.raises(ValueError, match=f"{next(iter(arguments))}.*Expected"):
        callbacks.FragmentationMonitor(**arguments)
