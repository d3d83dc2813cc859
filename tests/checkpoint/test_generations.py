"""Backups on disk: whole or skipped, and never the last good one lost."""

import json
import logging
import os
import pathlib
import zlib

import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt.checkpoint.generations import Generations
from keras_tfopt.checkpoint.storage import LocalStorage
from keras_tfopt.checkpoint.writer import BackgroundWriter

ARRAYS = {
    "variables/0": np.arange(6, dtype="float32").reshape(2, 3),
    "variables/1": tf.constant([1.5, -2.0], tf.bfloat16),
    "variables/2": np.array(7, "int64"),
    "empty": np.zeros((0, 3), "uint8"),
    "flags": np.array([True, False]),
    "view": np.arange(12).reshape(3, 4)[:, ::2],
}


@pytest.fixture
def generations(tmp_path):
    return Generations(str(tmp_path / "backups"))


def _folders(tmp_path):
    return sorted(path.name for path in (tmp_path / "backups").iterdir())


def test_what_is_written_is_read(generations):
    state = {"epoch": 3, "text": "ü", "rate": 0.1 + 0.2, "none": [None, True]}
    name = generations.write(state, ARRAYS, "run")
    found = generations.latest()
    assert found.name == name
    assert found.state == {"run": "run", "content": state}
    assert found.is_finite
    assert found.arrays.keys() == ARRAYS.keys()
    for key, value in ARRAYS.items():
        value = np.asarray(value)
        assert found.arrays[key].dtype == value.dtype
        np.testing.assert_array_equal(found.arrays[key], value)


def test_nothing_is_found_where_nothing_is(generations):
    assert generations.latest() is None
    generations.clear()
    generations.clear_unfinished()


@pytest.mark.parametrize("keep", [1, 3])
def test_as_many_stay_as_asked(keep, tmp_path):
    generations = Generations(str(tmp_path / "backups"), keep)
    names = [generations.write(index, {}, "run") for index in range(5)]
    assert _folders(tmp_path) == names[-keep:]
    assert generations.latest().state["content"] == 4


def test_those_of_another_run_go_once_there_is_one_of_this(
    generations, tmp_path
):
    generations.write(0, {}, "old")
    generations.write(1, {}, "old")
    name = generations.write(2, {}, "new")
    assert _folders(tmp_path) == [name]


def _truncate(folder):
    path = folder / "arrays.bin"
    path.write_bytes(path.read_bytes()[:-1])


def _flip(name, position):
    def damage(folder):
        data = bytearray((folder / name).read_bytes())
        data[position] ^= 1
        (folder / name).write_bytes(data)

    return damage


def _foreign(folder):
    text = json.dumps({"format": "of another program"}).encode()
    (folder / "manifest.json").write_bytes(b"%08x\n" % zlib.crc32(text) + text)


DAMAGES = {
    "truncated": (_truncate, "arrays.bin has 85 bytes, 86 were written"),
    "flipped": (_flip("arrays.bin", 5), "checksum of array variables/0"),
    "torn": (lambda f: (f / "manifest.json").unlink(), "no manifest.json"),
    "manifest": (_flip("manifest.json", 30), "checksum of manifest.json"),
    "checksum": (_flip("manifest.json", 0), "checksum of manifest.json"),
    "empty": (lambda f: (f / "manifest.json").write_bytes(b""), "checksum"),
    "no arrays": (lambda f: (f / "arrays.bin").unlink(), "No such file"),
    "foreign": (_foreign, "format is not"),
}


@pytest.mark.parametrize("damage, why", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_one_is_skipped(damage, why, generations, tmp_path, caplog):
    good = generations.write("good", ARRAYS, "run")
    bad = generations.write("bad", ARRAYS, "run")
    damage(tmp_path / "backups" / bad)
    with caplog.at_level(logging.WARNING, "keras_tfopt"):
        assert generations.latest().name == good
    assert f"{bad} is skipped" in caplog.text
    assert why in caplog.text
    # The one that is good outlives the next, too.
    newest = generations.write("newest", ARRAYS, "run")
    assert generations.latest().name == newest


def test_every_bit_is_verified(generations, tmp_path):
    arrays = {"variables/0": np.arange(3, dtype="uint8")}
    name = generations.write([1, 2], arrays, "run")
    for path in (tmp_path / "backups" / name).iterdir():
        data = path.read_bytes()
        for position in range(len(data)):
            damaged = bytearray(data)
            damaged[position] ^= 4
            path.write_bytes(damaged)
            assert generations.latest() is None, (path.name, position)
        path.write_bytes(data)
    assert generations.latest().name == name


def test_non_finite_variables_are_noted(generations):
    def write(value, name="variables/0", dtype="float32"):
        array = np.array([0.0, value], dtype)
        generations.write(str(value), {name: array}, "run")
        return generations.latest()

    assert write(1.0).is_finite
    # Arrays of callbacks may start at infinity.
    assert write(np.inf, "callbacks/0").is_finite
    for value in (np.nan, np.inf, -np.inf):
        assert not write(value).is_finite
    assert generations.latest(finite=True) is None
    write(2.0)
    write(np.nan)
    assert generations.latest(finite=True).state["content"] == "2.0"


def test_what_a_kill_left_is_removed(generations, tmp_path):
    name = generations.write(0, {}, "run")
    unfinished = tmp_path / "backups" / "generation-00000009.tmp"
    unfinished.mkdir()
    (unfinished / "arrays.bin").write_bytes(b"half")
    assert generations.latest().name == name
    generations.clear_unfinished()
    assert _folders(tmp_path) == [name]
    unfinished.mkdir()
    assert generations.write(1, {}, "run") == "generation-00000010"


def test_only_backups_are_cleared(generations, tmp_path):
    generations.write(0, {}, "run")
    other = tmp_path / "backups" / "notes.txt"
    other.write_text("mine")
    generations.clear()
    assert _folders(tmp_path) == ["notes.txt"]
    other.unlink()
    generations.write(0, {}, "run")
    generations.clear()
    assert not (tmp_path / "backups").exists()


def test_a_write_that_fails_leaves_the_others(
    generations, tmp_path, monkeypatch
):
    name = generations.write("good", ARRAYS, "run")

    def fail(*args):
        raise OSError("the mount is lost")

    for method in ("write", "publish"):
        with monkeypatch.context() as patch:
            patch.setattr(LocalStorage, method, fail)
            with pytest.raises(OSError, match="mount is lost"):
                generations.write("bad", ARRAYS, "run")
        assert _folders(tmp_path) == [name]
        assert generations.latest().state["content"] == "good"


def test_a_full_disk(small_disk, caplog):
    generations = Generations(str(small_disk / "backups"))
    writer = BackgroundWriter()
    arrays = {"variables/0": np.zeros(400_000, "uint8")}

    def write(content):
        writer.submit(lambda: generations.write(content, arrays, "run"))
        writer.wait()

    with caplog.at_level(logging.WARNING, "keras_tfopt"):
        for content in range(5):
            write(content)
    # The first two fit, the others fail: that is said once.
    assert generations.latest().state["content"] == 1
    assert len(caplog.records) == 1
    assert "No space left on device" in caplog.text
    arrays["variables/0"] = arrays["variables/0"][:1000]
    with caplog.at_level(logging.WARNING, "keras_tfopt"):
        write(5)
    assert generations.latest().state["content"] == 5
    assert "succeed again" in caplog.text
    assert not any(
        name.endswith(".tmp") for name in os.listdir(small_disk / "backups")
    )


def test_an_object_store(caplog):
    generations = Generations("ram://store/backups/")
    generations.clear()
    for index in range(3):
        generations.write(index, ARRAYS, "run")
    assert generations.latest().state["content"] == 2
    folder = "ram://store/backups"
    assert len(tf.io.gfile.listdir(folder)) == 2
    tf.io.gfile.remove(f"{folder}/generation-00000003/manifest.json")
    assert generations.latest().state["content"] == 1
    generations.clear()
    assert generations.latest() is None


def test_files_are_on_the_disk_before_their_name(generations, monkeypatch):
    events = []
    for name in ("fsync", "rename"):
        stock = getattr(os, name)

        def note(*args, name=name, stock=stock):
            where = args[0]
            if isinstance(where, int):
                where = os.readlink(f"/proc/self/fd/{where}")
            events.append((name, pathlib.Path(where).name))
            return stock(*args)

        monkeypatch.setattr(os, name, note)
    generations.write(0, ARRAYS, "run")
    folder = "generation-00000001.tmp"
    assert events == [
        ("fsync", "arrays.bin"),
        ("fsync", "manifest.json"),
        ("fsync", folder),
        ("rename", folder),
        ("fsync", "backups"),
    ]


def test_number_and_what_others_need(tmp_path):
    generations = Generations(str(tmp_path / "backups"), 1)
    assert generations.last_number() == 0
    for number in (3, 7, 8):
        generations.write(number, {}, "run", number, complete=3)
    assert generations.last_number() == 8
    # One that has not reached all workers yet is no reason to lose the last.
    found = [generations.latest(below=below).number for below in (9, 8)]
    assert found == [8, 3]
    assert generations.latest(below=3) is None
    assert generations.read(3).state["content"] == 3
    assert generations.read(4) is None
