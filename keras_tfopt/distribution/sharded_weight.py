"""A weight in pieces on several devices."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_tfopt._compat_placement import PlacedVariable
from keras_tfopt.devices import fan_out
from keras_tfopt.distribution.mesh import Mesh
from keras_tfopt.distribution.mesh import split_sizes


class ShardedWeight:
    """A weight of which each device of a mesh holds a piece.

    Each column of the mesh works with one shard. Its rows share the shard in
    pieces, and put it together when they need it.

    Args:
        mesh: `Mesh`.
        name: String. Name of the weight.
        shape: Tuple of integers. Shape of the whole.
        axis: Integer. Dimension that is divided among columns; `None` for a
            weight that is whole and needed on the first column only.
        across: Integer. Dimension that is divided among rows; `None` for one
            that is not.
        initializer: Callable that makes the whole.
        regularizer: Regularizer that sums over elements, or `None`.
        dtype: String. Type of the variables.

    Attributes:
        pieces: List with a list of variables for each shard.
    """

    def __init__(
        self,
        mesh: Mesh,
        name: str,
        shape: tuple[int, ...],
        axis: int | None,
        across: int | None,
        initializer: Callable,
        regularizer: Any,
        dtype: str,
    ) -> None:
        self._mesh = mesh
        self._shape = shape
        self._axis = axis
        columns = 1 if axis is None else mesh.shards
        if axis is not None and shape[axis] < columns:
            raise ValueError(
                f"Weight '{name}' cannot be divided among {columns} devices. "
                f"Received: {shape[axis]} units or heads. Expected: at least "
                f"{columns}, or fewer `devices`."
            )
        self._across = across
        if across is not None and shape[across] < mesh.groups:
            self._across = None
        source = _Source(initializer, shape, dtype)
        self.pieces = []
        for column, start, size in _spans(shape, axis, columns):
            pieces = []
            rows = 1 if self._across is None else mesh.groups
            for row, first, count in _spans(shape, self._across, rows):
                window = [slice(None)] * len(shape)
                if axis is not None:
                    window[axis] = slice(start, start + size)
                if self._across is not None:
                    window[self._across] = slice(first, first + count)
                variable = PlacedVariable(
                    source.part(tuple(window)),
                    shape=source.shape_of(tuple(window)),
                    dtype=dtype,
                    # Cast where it is used: the gradient of a cast has no
                    # device.
                    autocast=False,
                    name=f"{name}_{column}" + (f"_{row}" if rows > 1 else ""),
                    device=mesh.rows[row][column],
                )
                variable.regularizer = regularizer
                pieces.append(variable)
            self.pieces.append(pieces)

    def read(self) -> list[list[list[tf.Tensor]]]:
        """Returns the pieces that each device of the mesh needs.

        Returns:
            For each row of the mesh and each shard a list of tensors for
            `join`.
        """
        groups: list = [
            [[] for _ in self.pieces] for _ in range(self._mesh.groups)
        ]
        for column, pieces in enumerate(self.pieces):
            for row, variable in enumerate(pieces):
                owner = self._mesh.rows[row][column]
                with tf.device(owner):
                    value = tf.convert_to_tensor(variable.value)
                copies = fan_out(owner, value, len(groups))
                for group, copy in zip(groups, copies, strict=True):
                    group[column].append(copy)
        return groups

    def join(self, pieces: list[tf.Tensor], dtype: str) -> tf.Tensor:
        """Returns a shard from its pieces, in the dtype to compute with."""
        whole = (
            pieces[0] if len(pieces) == 1 else tf.concat(pieces, self._across)
        )
        return tf.cast(whole, dtype)

    def numpy(self) -> np.ndarray:
        """Returns the whole weight."""
        shards = [
            keras.ops.convert_to_numpy(pieces[0])
            if self._across is None
            else np.concatenate(
                [keras.ops.convert_to_numpy(piece) for piece in pieces],
                self._across,
            )
            for pieces in self.pieces
        ]
        if self._axis is None:
            return shards[0]
        return np.concatenate(shards, self._axis)

    def assign(self, value: Any) -> None:
        """Assigns the whole weight.

        Raises:
            ValueError: If the shape is another one.
        """
        value = np.asarray(value)
        if value.shape != self._shape:
            raise ValueError(
                f"Weight '{self.pieces[0][0].path}' is part of one of another "
                f"shape. Received: {value.shape}. Expected: {self._shape}."
            )
        for column, start, size in _spans(
            self._shape, self._axis, len(self.pieces)
        ):
            shard = _take(value, self._axis, start, size)
            pieces = self.pieces[column]
            for row, first, count in _spans(
                self._shape, self._across, len(pieces)
            ):
                pieces[row].assign(_take(shard, self._across, first, count))


class _Source:
    """Makes the whole initial value once, on the host, and gives parts of it.

    No device needs to have room for the whole, and an initializer that draws
    other numbers in each call is asked once, as by a stock layer.
    """

    def __init__(
        self, initializer: Callable, shape: tuple[int, ...], dtype: str
    ) -> None:
        self._initializer = initializer
        self._shape = shape
        self._dtype = dtype
        self._whole: np.ndarray | None = None

    def part(self, window: tuple[slice, ...]) -> Callable:
        """Returns an initializer of a part."""

        def initialize(shape: Any, dtype: Any = None) -> tf.Tensor:
            # Keras also asks for values while it calls layers symbolically.
            with tf.init_scope():
                return tf.constant(self._value()[window])

        return initialize

    def shape_of(self, window: tuple[slice, ...]) -> tuple[int, ...]:
        """Returns the shape of a part."""
        return tuple(
            len(range(*one.indices(size)))
            for one, size in zip(window, self._shape, strict=True)
        )

    def _value(self) -> np.ndarray:
        if self._whole is None:
            with tf.device("CPU:0"):
                value = self._initializer(self._shape, dtype=self._dtype)
            self._whole = keras.ops.convert_to_numpy(value)
        return self._whole


def _spans(
    shape: tuple[int, ...], axis: int | None, count: int
) -> list[tuple[int, int, int]]:
    """Returns index, start and size of each part of a dimension."""
    size = 1 if axis is None else shape[axis]
    sizes = split_sizes(size, count)
    return [
        (index, sum(sizes[:index]), size) for index, size in enumerate(sizes)
    ]


def _take(
    array: np.ndarray, axis: int | None, start: int, size: int
) -> np.ndarray:
    if axis is None:
        return array
    return np.take(array, range(start, start + size), axis)
