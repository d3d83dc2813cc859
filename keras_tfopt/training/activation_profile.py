"""What the calls of a model keep in memory, read from a traced step."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import math
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt import _compat_remat
from keras_tfopt.accumulation import TRAINING
from keras_tfopt.accumulation import build_whole_step
from keras_tfopt.accumulation.purity import unrepeatable
from keras_tfopt.accumulation.remat import main_part
from keras_tfopt.accumulation.segments import observed_calls
from keras_tfopt.memory.segmentation import Activation
from keras_tfopt.memory.segmentation import Profile
from keras_tfopt.training.batch import spec_of
from keras_tfopt.training.batch import to_tensors

# They pass a buffer on.
_VIEWS = frozenset(
    {
        "ExpandDims",
        "Identity",
        "IdentityN",
        "PreventGradient",
        "Reshape",
        "Squeeze",
        "StopGradient",
    }
)
_PRODUCTS = frozenset({"BatchMatMulV2", "BatchMatMulV3", "Einsum", "MatMul"})
_CONVOLUTIONS = frozenset({"Conv2D", "Conv3D", "DepthwiseConv2dNative"})

# Operations in the time that a byte takes to be written.
_OPERATIONS_PER_BYTE = 16

# Where TensorFlow puts what computes gradients.
_BACKWARD = "gradient_tape/"


def profile_activations(model: keras.Model, batch: Any) -> Profile:
    """Returns what the calls of a model keep for its backward pass.

    The step is traced, not run: it needs no memory. What is kept is what
    operations of the backward pass take from those of the forward pass. Tensors
    inside of loops, such as those of recurrent layers, are not seen.

    Args:
        model: A compiled functional or Sequential model, or one whose main part
            is functional.
        batch: Nest `(x, y)` or `(x, y, sample_weight)`, of the rows that pass
            through the model at once.

    Returns:
        `Profile`.

    Raises:
        ValueError: If the model has no functional part.
    """
    return profile_spec(model, spec_of(to_tensors(batch)))


def profile_spec(model: keras.Model, spec: Any) -> Profile:
    """Returns what the calls of a model keep for batches of a spec.

    Args:
        model: As for `profile_activations`.
        spec: Nest of specs of a batch, whose rows are fixed.

    Returns:
        `Profile`.

    Raises:
        ValueError: If the model has no functional part.
    """
    if not model.built:
        build_whole_step(model, spec, False)
    functional = functional_part(model)
    if functional is None:
        raise ValueError(
            "Calls are only known of a functional model. Received: "
            f"'{model.name}' ({type(model).__name__}). Expected: a functional "
            "or Sequential model. Use `every=1` or `names`."
        )
    marks = _Marks()
    with observed_calls(functional, marks.note):
        step, _ = build_whole_step(model, spec, False, TRAINING)
    return _read(step.graph, marks.of(step.graph))


def functional_part(model: keras.Model) -> keras.Model | None:
    """Returns the functional model that most of a model is in, or `None`."""
    return _compat_remat.functional_of(main_part(model))


@dataclasses.dataclass(frozen=True)
class _Call:
    """Where the operations of a call are in a graph.

    Attributes:
        name: String. Name of what is called.
        start: Integer. Number of operations before it.
        stop: Integer. Number of operations behind it.
        inputs: List of the tensors that it takes.
    """

    name: str
    start: int
    stop: int
    inputs: list[tf.Tensor]


class _Marks:
    """Notes which operations each call makes."""

    def __init__(self) -> None:
        self._calls: list[tuple[tf.Graph, _Call]] = []

    @contextlib.contextmanager
    def note(self, name: str, inputs: list[Any]) -> Iterator[None]:
        """Notes what is made inside."""
        graph = tf.compat.v1.get_default_graph()
        start = len(graph.get_operations())
        yield
        stop = len(graph.get_operations())
        tensors = [one for one in inputs if isinstance(one, tf.Tensor)]
        self._calls.append((graph, _Call(name, start, stop, tensors)))

    def of(self, graph: tf.Graph) -> list[_Call]:
        """Returns the calls in one graph."""
        return [call for known, call in self._calls if known is graph]


def _read(graph: tf.Graph, calls: list[_Call]) -> Profile:
    operations = graph.get_operations()
    maker = {
        operation.name: index
        for index, call in enumerate(calls)
        for operation in operations[call.start : call.stop]
    }
    last_use: dict[str, int] = {}
    for index, call in enumerate(calls):
        for tensor in call.inputs:
            last_use[_source(tensor).name] = index
    kept: dict[str, tf.Tensor] = {}
    for operation in operations:
        is_backward = operation.name.startswith(_BACKWARD)
        after = len(calls) if not is_backward else None
        for tensor in operation.inputs:
            source = _source(tensor)
            if source.op.name not in maker or source.op.type == "Const":
                continue
            if is_backward:
                kept[source.name] = source
            elif operation.name not in maker and after is not None:
                # Losses and metrics come behind the last call.
                last_use[source.name] = after
    tensors = {
        output.name: output
        for operation in operations
        if operation.name in maker
        for output in operation.outputs
        if output.name in kept or output.name in last_use
    }
    activations = [
        Activation(
            maker[tensor.op.name],
            max(last_use.get(name, 0), maker[tensor.op.name]),
            name in kept,
            _size(tensor),
        )
        for name, tensor in tensors.items()
    ]
    costs = [
        float(sum(map(_cost, operations[call.start : call.stop])))
        for call in calls
    ]
    names = tuple(call.name for call in calls)
    fixed = frozenset(
        index
        for index, call in enumerate(calls)
        if unrepeatable(operations[call.start : call.stop])
    )
    return Profile(names, tuple(activations), tuple(costs), fixed)


def _source(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the tensor whose buffer a tensor is."""
    while tensor.op.type in _VIEWS:
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def _size(tensor: tf.Tensor) -> int:
    """Bytes of a tensor; unknown dimensions count as 1."""
    if tensor.shape.rank is None or tensor.dtype.size is None:
        return 0
    return _elements(tensor) * tensor.dtype.size


def _elements(tensor: tf.Tensor) -> int:
    return math.prod(size or 1 for size in tensor.shape)


def _cost(operation: tf.Operation) -> float:
    """Time of an operation, in that of writing a byte."""
    if operation.type in _VIEWS:
        return 0.0
    outputs = [o for o in operation.outputs if o.shape.rank is not None]
    written = sum(map(_size, outputs))
    return written + _arithmetic(operation) / _OPERATIONS_PER_BYTE


def _arithmetic(operation: tf.Operation) -> float:
    """Multiplications and additions of a product or a convolution."""
    rule = _RULES.get(operation.type)
    return 0.0 if rule is None else rule(operation)


def _product(operation: tf.Operation) -> float:
    # For (m, k) and (k, n), the root of all three sizes is m k n.
    sizes = [*map(_elements, operation.inputs), _elements(operation.outputs[0])]
    batch = math.prod(size or 1 for size in operation.outputs[0].shape[:-2])
    return 2.0 * math.sqrt(math.prod(sizes) / max(batch, 1))


def _convolution(operation: tf.Operation) -> float:
    kernel = operation.inputs[1]
    channels = kernel.shape[-1] or 1
    outputs = _elements(operation.outputs[0])
    return 2.0 * outputs * _elements(kernel) / channels


_RULES: dict[str, Callable[[tf.Operation], float]] = {
    **dict.fromkeys(_PRODUCTS, _product),
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
}
