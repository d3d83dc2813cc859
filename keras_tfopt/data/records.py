"""Arrays as TFRecord files, which are read faster than Python makes them."""

from collections.abc import Iterable
from collections.abc import Mapping
import json
import os
from typing import Any

import tensorflow as tf

Row = Mapping[str, Any]
_SIGNATURE = ".signature.json"


def write_records(path: str | os.PathLike, rows: Iterable[Row]) -> int:
    """Writes rows of named arrays to a TFRecord file.

    What each row holds is noted beside it, so that `read_records` needs nothing
    but the path. The file appears under its name when it is complete.

    Example:

    ```python
    import numpy as np
    from keras_tfopt.data import read_records
    from keras_tfopt.data import write_records

    rows = [{"x": np.ones(3, "float32"), "y": n} for n in range(4)]
    assert write_records("train.tfrecord", rows) == 4
    dataset = read_records("train.tfrecord").batch(2)
    assert next(iter(dataset))["x"].shape == (2, 3)
    ```

    Args:
        path: Path of the file; one that `tf.io.gfile` knows will do.
        rows: Iterable of dicts of arrays or numbers. All rows have the same
            names and dtypes; a dimension that differs is read as unknown.

    Returns:
        Integer. Number of rows.

    Raises:
        ValueError: If there is no row, or if rows differ.
    """
    path = os.fspath(path)
    signature: dict[str, tuple[str, list[int | None]]] = {}
    count = 0
    with tf.io.TFRecordWriter(f"{path}.tmp") as writer:
        for row in rows:
            tensors = {name: tf.convert_to_tensor(row[name]) for name in row}
            signature = _merged(signature, tensors, count)
            writer.write(_example(tensors))
            count += 1
    if not count:
        tf.io.gfile.remove(f"{path}.tmp")
        raise ValueError(
            "Invalid value for argument `rows`. Received: no row. Expected: at "
            "least one."
        )
    with tf.io.gfile.GFile(path + _SIGNATURE, "w") as file:
        file.write(json.dumps(signature))
    tf.io.gfile.rename(f"{path}.tmp", path, overwrite=True)
    return count


def read_records(*paths: str | os.PathLike) -> tf.data.Dataset:
    """Returns the rows of files that `write_records` wrote, in their order.

    Args:
        *paths: Paths of files of rows of the same kind.

    Returns:
        `tf.data.Dataset` of dicts of tensors.

    Raises:
        ValueError: If there is no path.
    """
    if not paths:
        raise ValueError(
            "Invalid value for argument `paths`. Received: none. Expected: at "
            "least one path."
        )
    names = [os.fspath(path) for path in paths]
    with tf.io.gfile.GFile(names[0] + _SIGNATURE) as file:
        signature = json.loads(file.read())
    features = {
        name: tf.io.FixedLenFeature((), tf.string) for name in signature
    }

    def parse(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        found = tf.io.parse_single_example(serialized, features)
        return {
            name: tf.ensure_shape(
                tf.io.parse_tensor(found[name], tf.as_dtype(dtype)), shape
            )
            for name, (dtype, shape) in signature.items()
        }

    records = tf.data.TFRecordDataset(names)
    return records.map(parse, num_parallel_calls=tf.data.AUTOTUNE)


def _example(tensors: dict[str, tf.Tensor]) -> bytes:
    return tf.train.Example(
        features=tf.train.Features(
            feature={
                name: tf.train.Feature(
                    bytes_list=tf.train.BytesList(
                        value=[tf.io.serialize_tensor(tensor).numpy()]
                    )
                )
                for name, tensor in tensors.items()
            }
        )
    ).SerializeToString()


def _merged(
    signature: dict[str, tuple[str, list[int | None]]],
    tensors: dict[str, tf.Tensor],
    row: int,
) -> dict[str, tuple[str, list[int | None]]]:
    """Returns the signature that this row has in common with those before."""
    own = {n: (t.dtype.name, t.shape.as_list()) for n, t in tensors.items()}
    before = signature or own
    kinds = {n: (dtype, len(shape)) for n, (dtype, shape) in own.items()}
    expected = {n: (dtype, len(shape)) for n, (dtype, shape) in before.items()}
    if kinds != expected:
        raise ValueError(
            f"Rows differ. Received: {kinds} in row {row}. Expected: "
            f"{expected}, names with dtype and number of dimensions."
        )
    return {
        name: (
            dtype,
            [
                old if old == new else None
                for old, new in zip(before[name][1], shape, strict=True)
            ],
        )
        for name, (dtype, shape) in own.items()
    }
