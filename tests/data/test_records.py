import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt.data import read_records
from keras_tfopt.data import write_records


def rows(count=5, length=None):
    random = np.random.default_rng(0)
    for number in range(count):
        yield {
            "x": random.normal(size=(length or number + 1, 2)),
            "label": np.int32(number),
            "text": f"row {number}",
        }


def test_reads_what_was_written_in_its_order(tmp_path):
    path = tmp_path / "train.tfrecord"

    assert write_records(path, rows()) == 5

    read = list(read_records(path).as_numpy_iterator())
    for row, expected in zip(read, rows(), strict=True):
        np.testing.assert_array_equal(row["x"], expected["x"])
        assert row["x"].dtype == np.float64
        assert row["label"] == expected["label"]
        assert row["text"].decode() == expected["text"]


def test_shapes_are_known_where_all_rows_agree(tmp_path):
    path = tmp_path / "train.tfrecord"
    write_records(path, rows(length=3))
    assert read_records(path).element_spec["x"].shape == (3, 2)
    write_records(path, rows())
    assert read_records(path).element_spec["x"].shape.as_list() == [None, 2]


def test_several_files_follow_each_other(tmp_path):
    paths = [tmp_path / "1", tmp_path / "2"]
    for path in paths:
        write_records(path, rows(2, length=3))
    labels = [int(row["label"]) for row in read_records(*paths)]
    assert labels == [0, 1, 0, 1]


def test_rows_that_differ_leave_no_file(tmp_path):
    path = tmp_path / "train.tfrecord"
    with pytest.raises(ValueError, match="in row 1. Expected.*float32"):
        write_records(path, [{"x": tf.zeros(2)}, {"x": [1, 2]}])
    with pytest.raises(ValueError, match="no row"):
        write_records(path, [])
    assert not path.exists()
    with pytest.raises(ValueError, match="at least one path"):
        read_records()
