"""Files that TensorBoard reads."""

import itertools
import os
import socket
import time
from typing import Any

import numpy as np
from tensorboard.compat.proto import event_pb2
from tensorboard.compat.proto import summary_pb2
from tensorboard.plugins.histogram import metadata as histogram_metadata
from tensorboard.plugins.histogram import summary_v2 as histogram
from tensorboard.plugins.image import metadata as image_metadata
from tensorboard.plugins.scalar import summary_v2 as scalar
from tensorboard.plugins.text import summary_v2 as text
from tensorboard.util import tensor_util
import tensorflow as tf

_numbers = itertools.count()


class EventFile:
    """Writes events without TensorFlow's operations.

    `tf.summary` runs an operation of about a millisecond for each point. Here
    all points of a moment are one record.

    Args:
        directory: String. Folder of the run; it is made if need be.
    """

    def __init__(self, directory: str) -> None:
        os.makedirs(directory, exist_ok=True)
        name = (
            f"events.out.tfevents.{int(time.time()):010d}."
            f"{socket.gethostname()}.{os.getpid()}.{next(_numbers)}.v2"
        )
        self._writer = tf.io.TFRecordWriter(os.path.join(directory, name))
        version = event_pb2.Event(
            wall_time=time.time(), file_version="brain.Event:2"
        )
        self._writer.write(version.SerializeToString())

    def write(self, wall_time: float, step: int, *summaries: Any) -> None:
        """Writes what belongs to one moment.

        Args:
            wall_time: Float. Seconds since the epoch of the clock.
            step: Integer. Optimizer updates so far.
            *summaries: `Summary` protos.
        """
        if not summaries:
            return
        event = event_pb2.Event(wall_time=wall_time, step=step)
        for summary in summaries:
            # Some are of classes of TensorFlow, some of TensorBoard's copies.
            event.summary.MergeFromString(summary.SerializeToString())
        self._writer.write(event.SerializeToString())

    def flush(self) -> None:
        """Shows what was written to readers."""
        self._writer.flush()

    def close(self) -> None:
        """Ends the file."""
        self._writer.close()


def scalar_summary(tag: str, value: float) -> Any:
    """Returns a point of a curve."""
    return scalar.scalar_pb(tag, value)


def text_summary(tag: str, value: str) -> Any:
    """Returns a text, which may be Markdown."""
    return text.text_pb(tag, value)


def histogram_summary(tag: str, values: np.ndarray) -> Any:
    """Returns the distribution of the values of an array."""
    return histogram.histogram_pb(tag, values)


def counted_summary(
    tag: str, low: float, high: float, counts: np.ndarray
) -> Any:
    """Returns the distribution of values that were counted already.

    Args:
        tag: String.
        low: Float. The least value.
        high: Float. The largest value.
        counts: Array. How many values lie in each of equal bins between them.
    """
    # Of values that are all equal TensorBoard has the count in the last bin.
    counts = counts if high > low else counts[::-1]
    edges = np.linspace(low, high, len(counts) + 1)
    tensor = tensor_util.make_tensor_proto(
        np.stack([edges[:-1], edges[1:], counts], axis=1), dtype=np.float64
    )
    metadata = histogram_metadata.create_summary_metadata(
        display_name=None, description=None
    )
    summary = summary_pb2.Summary()
    summary.value.add(tag=tag, metadata=metadata, tensor=tensor)
    return summary


def image_summary(tag: str, pixels: Any) -> Any:
    """Returns one or more pictures.

    Args:
        tag: String.
        pixels: Array of shape `(height, width, channels)`, or several of them;
            bytes, or floats from 0 to 1.

    Raises:
        ValueError: If it has another shape.
    """
    array = np.asarray(pixels)
    if array.ndim == 3:
        array = array[None]
    if array.ndim != 4 or array.shape[-1] not in (1, 3, 4):
        raise ValueError(
            f"Invalid image for `{tag}`. Received: shape {array.shape}. "
            "Expected: (height, width, channels) with 1, 3 or 4 channels, or "
            "several of them."
        )
    if array.dtype != np.uint8:
        array = (np.clip(array, 0.0, 1.0) * 255.0).round().astype(np.uint8)
    encoded = [tf.io.encode_png(image).numpy() for image in array]
    height, width = array.shape[1:3]
    tensor = tensor_util.make_tensor_proto(
        [str(width).encode(), str(height).encode(), *encoded]
    )
    metadata = image_metadata.create_summary_metadata(
        display_name=None, description=None
    )
    summary = summary_pb2.Summary()
    summary.value.add(tag=tag, metadata=metadata, tensor=tensor)
    return summary
