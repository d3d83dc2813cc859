"""Groups of variables take turns on a device, and nothing is lost."""

import json
import logging
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt.checkpoint.variables import snapshot
from keras_tfopt.checkpoint.variables import variables_of
from keras_tfopt.memory import HostMemory
from keras_tfopt.memory import SwapManager
from keras_tfopt.memory import swap_budget
from keras_tfopt.memory.disk_store import DiskStore
from keras_tfopt.memory.eviction import is_away
from keras_tfopt.memory.readings import DeviceReading
from keras_tfopt.memory.readings import MemoryReading
from keras_tfopt.memory.swap_brake import SwapBrake
from keras_tfopt.memory.swap_counters import SwapCounters
from keras_tfopt.memory.swap_counters import ThrashDetector
from tests import subprocesses
from tests.equivalence import state_of
from tests.memory import two_models

# Of one group in these tests.
BYTES = 64 * 64 * 4


def group(value=1.0):
    return [tf.Variable(tf.fill((64, 64), float(value)))]


@pytest.fixture
def three():
    """A manager with room for two of three groups."""
    with SwapManager(budget_bytes=2 * BYTES) as swap:
        for number, name in enumerate("abc"):
            swap.add(name, group(number))
        yield swap


def test_the_least_recently_used_group_leaves(three):
    assert three.resident == ("b", "c")
    three.fetch("b")
    three.fetch("a")
    assert three.resident == ("b", "a")
    assert three.counters.swaps == {"in": 1, "out": 2}
    assert three.counters.bytes == {"in": BYTES, "out": 2 * BYTES}
    assert three.counters.hit_ratio == 0.5


def test_a_group_in_use_stays(three):
    with three.using("b", "c"):
        # There is no room, and nothing that may leave.
        with three.using("a"):
            assert three.resident == ("b", "c", "a")
        with pytest.raises(ValueError, match="in use stays.*Expected"):
            three.evict("b")
    three.fetch("a")
    assert three.resident_bytes == 2 * BYTES


def test_all_are_pinned_before_one_is_fetched(three):
    three.evict("b")
    with three.using("a", "c"):
        assert three.resident == ("a", "c")
    assert three.counters.swaps == {"in": 1, "out": 2}


def test_close_brings_everything_back(three):
    three.close()
    assert three.resident == ()
    assert three.counters.swaps["in"] == three.counters.swaps["out"]


def test_a_touch_fetches_and_makes_room(three):
    first = three._groups["a"].variables()[0]
    assert is_away(first)
    assert first.numpy().sum() == 0
    assert three.resident == ("c", "a")


def test_prefetch_takes_only_free_room(three):
    assert three.prefetch("a").result() is False
    three.evict("b")
    assert three.prefetch("a").result() is True
    three.fetch("a")
    assert three.counters.hits == 1


def test_a_fetch_waits_for_the_prefetch_under_way(three, monkeypatch):
    three.evict("b")
    started, may_go_on = threading.Event(), threading.Event()
    wanted = three._groups["a"]
    restore = wanted.restore

    def slow():
        started.set()
        assert may_go_on.wait(60)
        return restore()

    monkeypatch.setattr(wanted, "restore", slow)
    future = three.prefetch("a")
    started.wait(60)
    # Others are used in the meantime.
    with three.using("c"):
        pass
    assert three.resident_bytes == 2 * BYTES
    threading.Timer(0.1, may_go_on.set).start()
    with three.using("a"):
        assert "a" in three.resident
    assert future.result() is True
    assert three.counters.swaps["in"] == 1
    assert three.counters.misses == 0


def test_a_prefetch_without_room_reads_the_disk(tmp_path):
    with SwapManager(BYTES, tier="disk", directory=tmp_path) as swap:
        for number, name in enumerate("ab"):
            swap.add(name, group(number))
        assert swap.prefetch("a").result() is False
        store = swap._groups["a"]._eviction._store
        # What is read ahead is not read again.
        store._file.close()
        swap.fetch("a")
        assert swap._groups["a"].variables()[0].numpy().sum() == 0
        assert swap.resident == ("a",)


def network(cls=keras.Model):
    inputs = keras.Input((64,))
    model = cls(inputs, keras.layers.Dense(64, name="dense")(inputs))
    model.compile("adam", "mse")
    return model


X = np.random.default_rng(0).normal(size=(8, 64)).astype("float32")


def by_turns(models, rounds=3):
    for _ in range(rounds):
        for model in models:
            model.fit(X, X, batch_size=4, shuffle=False, verbose=0)
            model.train_on_batch(X, X)
            model.evaluate(X, X, verbose=0)
            model.predict(X, verbose=0)


def test_nothing_more_comes_while_memory_is_short():
    with SwapManager(budget_bytes=4 * BYTES) as swap:
        for number, name in enumerate("abc"):
            swap.add(name, group(number))
        swap.evict("a")
        swap.pause()
        assert swap.prefetch("a").result() is False
        # A step that needs it never fails: another group leaves.
        with swap.using("a"):
            assert swap.resident == ("c", "a")
        swap.resume()
        assert swap.prefetch("b").result()
        assert len(swap.resident) == 3


def test_the_brake_has_hysteresis(caplog):
    with SwapManager(budget_bytes=BYTES) as swap:
        brake = SwapBrake(swap, max_utilization=0.8, hysteresis=0.1)
        paused = []
        for used in (None, 70, 81, 75, 71, 70, 75):
            device = DeviceReading("GPU:0", peak_bytes=used, limit_bytes=100)
            reading = MemoryReading(0.0, 0, 0.0, (device,), HostMemory())
            brake.update(reading)
            paused.append(swap.is_paused)
        assert paused == [False, False, True, True, True, False, False]
        assert len(caplog.records) == 2
        swap.pause()
        brake.release()
        assert not swap.is_paused


@pytest.mark.parametrize(
    ("tier", "cls"), [("host", AccumModel), ("disk", keras.Model)]
)
def test_training_by_turns_is_the_same(tier, cls, tmp_path):
    def models(cls):
        keras.utils.clear_session()
        keras.utils.set_random_seed(0)
        return [network(cls), network(cls)]

    stock = models(keras.Model)
    by_turns(stock)
    swapped = models(cls)
    swap = SwapManager(
        4 * BYTES, tier=tier, directory=tmp_path if tier == "disk" else None
    )
    for name, model in zip("ab", swapped, strict=True):
        swap.add(name, model)
    by_turns(swapped)
    assert swap.counters.swaps["in"] >= 5
    assert swap.counters.seconds_per_gib("in") > 0
    swap.close()
    assert not list(tmp_path.iterdir())
    for model, expected in zip(swapped, stock, strict=True):
        assert "fit" not in vars(model)
        for (path, value), wanted in zip(
            state_of(model).items(), state_of(expected).values(), strict=True
        ):
            np.testing.assert_array_equal(value, wanted, err_msg=path)


def test_what_is_away_is_saved_as_it_is(tmp_path):
    model, other = network(), network()
    expected = model.get_weights()[0]
    with SwapManager(budget_bytes=4 * BYTES) as swap:
        swap.add("model", model)
        swap.add("other", other)
        assert swap.resident == ("other",)
        model.save_weights(tmp_path / "a.weights.h5")
        assert swap.resident == ("model",)
    other.load_weights(tmp_path / "a.weights.h5")
    np.testing.assert_array_equal(other.get_weights()[0], expected)


def test_a_backup_holds_what_is_away():
    model = network()
    model.fit(X, X, verbose=0)
    everything = variables_of(model)
    expected = [np.asarray(value) for value in snapshot(everything)]
    slots = [v for v in model.optimizer.variables if "momentum" in v.path]
    with SwapManager(budget_bytes=1) as swap:
        swap.add("slots", slots)
        assert not swap.resident
        for value, wanted in zip(snapshot(everything), expected, strict=True):
            np.testing.assert_array_equal(value, wanted)


def test_a_function_of_ones_own():
    model, other = network(), network()
    run = tf.function(lambda: model(X))
    expected = run().numpy()
    with SwapManager(budget_bytes=4 * BYTES) as swap:
        swap.add("model", model)
        swap.add("other", other)
        with swap.using(model):
            np.testing.assert_array_equal(run(), expected)


def test_a_full_disk_loses_nothing(small_disk):
    values = {"a": 3.0, "b": 4.0}
    with SwapManager(1, tier="disk", directory=small_disk) as swap:
        with pytest.raises(OSError, match="stay on the device.*Expected"):
            for name, value in values.items():
                # One fits onto the disk, two do not.
                swap.add(name, [tf.Variable(tf.fill((450, 400), value))])
        assert swap.resident == ("b",)
        with pytest.raises(OSError, match="No space left"):
            swap.fetch("a")
        # Neither has left its place.
        assert swap.resident == ("b",)
        for name, value in values.items():
            (variable,) = swap._groups[name].variables()
            if name == "b":
                assert np.all(variable.numpy() == value)
        with swap.using("b"):
            swap.fetch("a")
        assert swap.resident == ("b", "a")
    assert np.all(variable.numpy() == 4)


def test_what_a_disk_has_changed_is_refused(tmp_path):
    store = DiskStore(str(tmp_path))
    arrays = [np.arange(6.0).reshape(2, 3), np.ones(3, "int8")]
    store.save(arrays)
    for loaded, array in zip(store.load(), arrays, strict=True):
        np.testing.assert_array_equal(loaded, array)
    assert not list(tmp_path.iterdir())
    store._file.seek(8)
    store._file.write(b"changed")
    with pytest.raises(OSError, match="does not hold what was written"):
        store.load()
    store.discard()
    assert store.load() == []


def test_thrashing_is_a_share_of_the_time():
    detector = ThrashDetector(max_share=0.5, window=3)
    assert [detector.note(t, 1.0) for t in (1, 11, 21)] == [None] * 3
    assert detector.note(22, 1.0) is None
    assert detector.note(23, 1.0) == pytest.approx(1.0)
    detector.forget()
    assert detector.note(24, 1.0) is None


def test_thrashing_enlarges_what_may_stay(monkeypatch, caplog):
    monkeypatch.setattr(swap_budget.SwapBudget, "_room", lambda _: 10 * BYTES)
    swap = SwapManager(budget_bytes=BYTES, max_swap_share=0.01)
    with caplog.at_level(logging.WARNING, "keras_tfopt"), swap:
        for name in "ab":
            swap.add(name, group())
        for _ in range(10):
            swap.fetch("a")
            swap.fetch("b")
        assert swap.budget_bytes == 2 * BYTES
        assert swap.resident == ("a", "b")
    assert len(caplog.records) == 1
    assert "budget is raised" in caplog.text
    assert swap.counters.swaps["in"] < 10


def test_thrashing_without_room_is_said_once(caplog):
    swap = SwapManager(budget_bytes=BYTES, max_swap_share=0.01)
    with caplog.at_level(logging.WARNING, "keras_tfopt"), swap:
        for name in "ab":
            swap.add(name, group())
        for _ in range(12):
            swap.fetch("a")
            swap.fetch("b")
    assert swap.budget_bytes == BYTES
    assert len(caplog.records) == 1
    assert "more steps in a row" in caplog.text


def test_counters_know_nothing_before_the_first_use():
    counters = SwapCounters()
    assert counters.hit_ratio is None
    assert counters.seconds_per_gib("in") is None
    assert "offload_hit_ratio" not in counters.metrics()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "budget_bytes"),
        ({"budget_bytes": 0}, "budget_bytes"),
        ({"budget_bytes": 1, "swap_threshold_bytes": 1}, "swap_threshold"),
        ({"swap_threshold_bytes": -1}, "swap_threshold"),
        ({"budget_bytes": 1, "tier": "tape"}, "tier"),
        ({"budget_bytes": 1, "tier": "disk"}, "directory"),
        ({"budget_bytes": 1, "directory": "."}, "directory"),
        ({"budget_bytes": 1, "max_swap_share": 1}, "max_swap_share"),
    ],
    ids=str,
)
def test_bad_arguments(arguments, named):
    with pytest.raises(ValueError, match=f"{named}.*Expected"):
        SwapManager(**arguments)


def test_bad_groups(three):
    with pytest.raises(ValueError, match="'d'.*Expected.*'a'"):
        three.fetch("d")
    with pytest.raises(ValueError, match="taken"):
        three.add("a", group())
    with pytest.raises(ValueError, match="one group only.*in 'a'"):
        three.add("d", three._groups["a"].variables())
    with pytest.raises(ValueError, match="not built"):
        three.add("d", keras.Sequential([keras.layers.Dense(4)]))


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["host", "disk"])
def test_two_models_that_do_not_fit_together(tier, tmp_path):
    path = tmp_path / "weights.npz"
    folder = tmp_path / "swap"
    folder.mkdir()
    printed = subprocesses.run_python(
        "-m",
        two_models.__name__,
        str(path),
        *([str(folder)] if tier == "disk" else []),
        TF_CPU_ALLOCATOR_USE_BFC="true",
        TF_CPU_BFC_MEM_LIMIT_IN_MB=str(two_models.LIMIT),
        TF_ENABLE_ONEDNN_OPTS="0",
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    assert printed.returncode == 0, printed.stderr
    found = json.loads(printed.stdout.splitlines()[-1])
    assert found["peak"] < two_models.LIMIT * 2**20
    assert found["memory_swaps_total"]["in"] >= 2 * two_models.ROUNDS - 1
    if tier == "host":
        assert found["without"] == "out of memory"
    models = two_models.make_models()
    two_models.train(models)
    with np.load(path) as swapped:
        for name, expected in two_models.weights_of(models).items():
            np.testing.assert_allclose(
                swapped[name], expected, atol=1e-6, err_msg=name
            )
