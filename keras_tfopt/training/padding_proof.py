"""Whether padding changes anything, found out by running it both ways."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.accumulation import PaddedStep
from keras_tfopt.accumulation import PaddingError
from keras_tfopt.accumulation import StepResult
from keras_tfopt.accumulation import UndecidedPaddingError
from keras_tfopt.accumulation.split import check_rows
from keras_tfopt.accumulation.split import is_per_row
from keras_tfopt.accumulation.split import take_rows
from keras_tfopt.errors import is_out_of_memory
from keras_tfopt.training.batch import static_rows

# One program may only add in another order, and only on a GPU.
_ONE_PROGRAM = 2.0**-20
# A tensor whose entries cancel out is all rounding; what it is made of is not.
_SMALLEST_SHARE = 1e-2
_SMALLEST_STATE = 1e-6
_DIGITS = {"bfloat16": 7, "float16": 10, "float32": 23, "float64": 52}


class PaddingProof:
    """Compares steps with and without padding on a batch, and writes nothing.

    No list of layers could tell of a model whether its rows influence each
    other. So before a function pads for the first time, it runs compiled and
    padded in two ways, with different rows for padding, and uncompiled without
    padding. The two are one program and must agree to the last digits; the
    third, which is rounded otherwise, to half of the digits. To make any
    influence of padding large against that, the batch is also compared cut to
    half of the size.

    Args:
        model: The compiled Keras model.
        step: Its `PaddedStep`.
        spec: Nest of the specs of a batch of any rows.
    """

    def __init__(self, model: keras.Model, step: PaddedStep, spec: Any) -> None:
        self._step = step
        self._names = [
            *(f"the gradient of '{v.path}'" for v in step.trainable),
            *(f"the new value of '{v.path}'" for v in step.updated),
        ]
        self._tolerance = _rounding(model) ** 0.5
        self._proven: set[tuple] = set()
        self._spec = spec
        self._functions: list[Any] = []

    def __call__(self, batch: Any) -> None:
        """Checks a batch, if it is the first one of its shape.

        Raises:
            ValueError: If leading dimensions of the batch disagree.
            PaddingError: Names what differed, and how much.
            UndecidedPaddingError: If this batch cannot tell.
        """
        shapes = tuple(
            leaf.shape[1:] if is_per_row(leaf) else None
            for leaf in tf.nest.flatten(batch)
        )
        if shapes in self._proven:
            return
        check_rows(batch)
        if not self._functions:
            self._trace()
        rows = static_rows(batch) or 1
        for part in sorted({rows, min(rows, -(-self._step.size // 2))}):
            if part % self._step.size:
                self._compare(take_rows(batch, 0, part))
        self._proven.add(shapes)
        # Of no use for batches of known shapes.
        self._functions = []

    def _trace(self) -> None:
        step = self._step

        def padded(batch: Any, filler: tf.Tensor) -> StepResult:
            filled = step.with_filler(filler)
            return filled(batch, filled.partition(batch))

        def plain(batch: Any) -> StepResult:
            return step.plain(batch, step.partition(batch))

        scalar = tf.TensorSpec((), tf.int32)
        self._functions = [
            tf.function(padded, autograph=False).get_concrete_function(
                self._spec, scalar
            ),
            tf.function(plain, autograph=False).get_concrete_function(
                self._spec
            ),
        ]

    def _compare(self, batch: Any) -> None:
        padded, plain = self._functions
        last = tf.constant((static_rows(batch) or 1) % self._step.size - 1)
        # What is out of memory here would be so in the step itself.
        actual = [_value(leaf) for leaf in _leaves(padded(batch, last))]
        if not all(map(_is_finite, actual)):
            raise UndecidedPaddingError(
                "gradients or metrics of this batch are not finite, so that "
                "nothing can be compared"
            )
        try:
            other = padded(batch, tf.constant(0))
            self._judge(actual, other, _ONE_PROGRAM, "what it consists of")
            self._judge(actual, plain(batch), self._tolerance, "it")
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise PaddingError(
                "there is no memory to compare steps with and without it"
            ) from error

    def _judge(
        self, actual: list, result: StepResult, tolerance: float, cause: str
    ) -> None:
        count = len(self._step.trainable)
        largest = max(map(_largest, actual[:count]), default=0.0)
        # One at a time on the host.
        for index, leaf in enumerate(_leaves(result)):
            is_gradient = index < count
            floor = (
                _SMALLEST_SHARE * largest if is_gradient else _SMALLEST_STATE
            )
            error = _distance(actual[index], _value(leaf), floor)
            # NaN is no distance either.
            if not error <= tolerance:
                raise PaddingError(
                    f"{self._names[index]} depends on {cause}, by "
                    f"{error:.1e} of its largest entry"
                )


def _rounding(model: keras.Model) -> float:
    """Returns the rounding of the least precise arithmetic in a model."""
    dtypes = {layer.compute_dtype for layer in _compat.layers_of(model)}
    digits = [_DIGITS[dtype] for dtype in dtypes if dtype in _DIGITS]
    return 2.0 ** -min(digits, default=_DIGITS["float32"])


def _leaves(result: StepResult) -> list:
    return [*result.gradients, *result.updates]


def _value(leaf: Any) -> Any:
    if leaf is None:
        return None
    if isinstance(leaf, tf.IndexedSlices):
        return leaf.indices.numpy(), _array(leaf.values)
    return _array(leaf)


def _array(tensor: tf.Tensor) -> np.ndarray:
    array = tensor.numpy()
    return array if array.itemsize > 2 else array.astype("float32")


def _is_finite(value: Any) -> bool:
    array = value[1] if isinstance(value, tuple) else value
    return array is None or bool(np.all(np.isfinite(array)))


def _largest(value: Any) -> float:
    if value is None:
        return 0.0
    array = value[1] if isinstance(value, tuple) else value
    return float(np.max(np.abs(array), initial=0.0))


def _distance(actual: Any, expected: Any, floor: float) -> float:
    """Largest difference, relative to the largest entry."""
    if actual is None or expected is None:
        return 0.0 if actual is expected else np.inf
    if isinstance(actual, tuple):
        actual, expected = _on_common_rows(actual, expected)
    largest = float(np.max(np.abs(actual - expected), initial=0.0))
    return largest / max(_largest(actual), floor) if largest else 0.0


def _on_common_rows(*slices: tuple) -> list[np.ndarray]:
    """Returns sparse gradients as sums over the rows that any of them has."""
    indices = np.unique(np.concatenate([index for index, _ in slices]))
    sums = []
    for index, values in slices:
        total = np.zeros((len(indices), *values.shape[1:]))
        np.add.at(total, np.searchsorted(indices, index), values)
        sums.append(total)
    return sums
