"""Variables move together, and none is lost on the way."""

import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt.errors import OutOfMemoryError
from keras_tfopt.memory import Compaction
from keras_tfopt.memory import Eviction
from keras_tfopt.memory import Fragmentation
from keras_tfopt.memory import compact
from keras_tfopt.memory import eviction as eviction_module
from keras_tfopt.memory.eviction import is_away


def variables():
    return [tf.Variable(np.full((64, n), n, "float32")) for n in (16, 64, 32)]


def test_values_are_the_same():
    moved = variables()
    found = compact([*moved, tf.Variable(1.0)])
    assert found.moved_bytes == 64 * (16 + 64 + 32) * 4
    assert found.seconds > 0
    for variable in moved:
        assert np.all(variable.numpy() == variable.shape[1])


def test_what_is_away_stays_away():
    moved = variables()
    away = Eviction(moved[:1])
    assert compact(moved).moved_bytes == 64 * (64 + 32) * 4
    assert is_away(moved[0])
    away.restore()


def test_nothing_is_moved_on_another_device():
    assert compact(variables(), "GPU:0").moved_bytes == 0


@pytest.mark.parametrize("failures", [2, 3])
def test_room_that_others_give_back_late(failures, monkeypatch):
    write = eviction_module._write
    left = [failures]

    def fail(variable, array):
        if left[0]:
            left[0] -= 1
            raise tf.errors.ResourceExhaustedError(None, None, "no room")
        write(variable, array)

    monkeypatch.setattr(eviction_module, "_write", fail)
    moved = variables()
    if failures == 2:
        compact(moved)
    else:
        with pytest.raises(OutOfMemoryError, match="no room.*on the host"):
            compact(moved)
        assert all(map(is_away, moved))
    for variable in moved:
        assert np.all(variable.numpy() == variable.shape[1])


def test_words():
    before = Fragmentation(2**30, 2**29, 2**29, 2**27)
    after = Fragmentation(2**30, 2**29, 2**29, 2**28)
    found = Compaction(2**20, 0.5, before, after)
    assert found.gained_bytes == 2**27
    assert "128.0 to 256.0 MiB, fragmentation 75% to 50%" in str(found)
    unread = Compaction(2**20, 0.5, None, None)
    assert unread.gained_bytes == 0
    assert str(unread) == "moved 1.0 MiB in 0.50 s"
