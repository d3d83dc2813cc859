"""A functional model, run in segments of which some are recomputed."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
from typing import Any

import keras

from keras_tfopt import _compat
from keras_tfopt import _compat_remat
from keras_tfopt.accumulation.recomputation import Recomputed
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.plan import Remat


@dataclasses.dataclass(frozen=True)
class Segment:
    """Calls that follow each other in a functional model.

    Attributes:
        start: Integer. First of them in the order of calls.
        stop: Integer. Behind the last of them.
    """

    start: int
    stop: int


def every_segments(model: keras.Model, every: int) -> list[Segment]:
    """Returns segments of so many layers each, up to the last but one.

    Operations that are no layers go with the layer before them. The last
    segment is not recomputed: its turn comes at once.

    Args:
        model: A functional model.
        every: Integer.
    """
    nodes = _compat_remat.ordered_nodes(model)
    is_layer = [isinstance(n.operation, keras.layers.Layer) for n in nodes]
    starts = [index for index, is_one in enumerate(is_layer) if is_one]
    cuts = [0, *starts[every::every]]
    return [
        Segment(start, stop)
        for start, stop in zip(cuts[:-1], cuts[1:], strict=True)
    ]


def named_segments(
    model: keras.Model, pairs: Sequence[tuple[str, str]]
) -> list[Segment]:
    """Returns the segments from first to last names.

    Args:
        model: A functional model.
        pairs: Pairs of names, in the order of the model's calls.

    Raises:
        ValueError: If there is no such segment behind the one before.
    """
    names = call_names(model)
    segments: list[Segment] = []
    position = 0
    for first, last in pairs:
        try:
            start = names.index(first, position)
            position = names.index(last, start) + 1
        except ValueError as error:
            raise ValueError(
                "A segment to recompute is not there. Received: "
                f"{(first, last)} in the model '{model.name}', whose calls "
                f"are {names}. Expected: two of these names, in their order, "
                "behind the segment before."
            ) from error
        segments.append(Segment(start, position))
    return segments


def name_segments(model: keras.Model, segments: Sequence[Segment]) -> Remat:
    """Returns segments as pairs of names, as a plan has them."""
    names = call_names(model)
    pairs = tuple((names[s.start], names[s.stop - 1]) for s in segments)
    if [*named_segments(model, pairs)] != list(segments):
        raise ValueError(
            "Segments cannot be named. Received: a model "
            f"'{model.name}' that calls a layer several times."
        )
    return pairs or None


def call_names(model: keras.Model) -> list[str]:
    """Returns the name of what each call of a functional model calls."""
    nodes = _compat_remat.ordered_nodes(model)
    return [node.operation.name for node in nodes]


class SegmentedGraph:
    """Stands in for the method by which Keras runs a functional model.

    Args:
        model: The functional model.
        segments: List of the `Segment`s to recompute.
        plan: `ExecutionPlan`. As for `Recomputed`.
    """

    def __init__(
        self, model: keras.Model, segments: list[Segment], plan: ExecutionPlan
    ) -> None:
        self._model = model
        self._original = _compat_remat.run_through_graph(model)
        self._plan = plan
        nodes = _compat_remat.ordered_nodes(model)
        ends = [id(tensor) for tensor in model.outputs]
        self._parts = [
            _Part(nodes, segment, is_recomputed, ends)
            for segment, is_recomputed in _with_gaps(segments, len(nodes))
        ]

    def __call__(
        self, inputs: Any, operation_fn: Callable, call_fn: Any = None
    ) -> Any:
        """Runs the model.

        Args:
            inputs: Nest of tensors.
            operation_fn: Callable that makes a function of an operation.
            call_fn: Given only where Keras runs a model symbolically.
        """
        values = keras.tree.flatten(inputs)
        symbolic = any(isinstance(one, keras.KerasTensor) for one in values)
        if symbolic or call_fn is not None:
            return self._original(inputs, operation_fn, call_fn)
        known = {
            id(reference): value
            for reference, value in zip(
                _compat_remat.graph_inputs(self._model), values, strict=True
            )
        }
        for part in self._parts:
            known.update(part.run(known, operation_fn, self._plan))
        outputs = [known[id(tensor)] for tensor in self._model.outputs]
        return _compat_remat.pack_outputs(self._model, outputs)


class _Part:
    """A segment with what goes in and out.

    Args:
        nodes: All nodes of the model, in order.
        segment: The `Segment`.
        is_recomputed: Boolean.
        ends: Ids of the symbolic outputs of the model.
    """

    def __init__(
        self,
        nodes: list[Any],
        segment: Segment,
        is_recomputed: bool,
        ends: list[int],
    ) -> None:
        self._nodes = nodes[segment.start : segment.stop]
        self._is_recomputed = is_recomputed
        made = _outputs_of(self._nodes)
        later = {*_inputs_of(nodes[segment.stop :]), *ends}
        self._inputs = [
            key for key in _inputs_of(self._nodes) if key not in set(made)
        ]
        self._outputs = [key for key in made if key in later]
        self._layers = [
            inner
            for node in self._nodes
            if isinstance(node.operation, keras.layers.Layer)
            for inner in _compat.layers_of(node.operation)
        ]

    def run(
        self,
        known: dict[int, Any],
        operation_fn: Callable,
        plan: ExecutionPlan,
    ) -> dict[int, Any]:
        """Returns what the segment makes of what is known."""
        keys = [key for key in self._inputs if key in known]

        def compute(values: list[Any]) -> dict[int, Any]:
            found = dict(zip(keys, values, strict=True))
            for node in self._nodes:
                _run_node(node, found, operation_fn)
            return {key: found[key] for key in self._outputs if key in found}

        values = [known[key] for key in keys]
        if not self._is_recomputed:
            return compute(values)
        return Recomputed(compute, self._layers, plan)(values)


@contextlib.contextmanager
def observed_calls(
    model: keras.Model,
    observe: Callable[[str, list[Any]], contextlib.AbstractContextManager],
) -> Iterator[None]:
    """Lets each call of a functional model be observed.

    Args:
        model: A functional model.
        observe: Callable `(name, inputs)` that makes a context in which the
            operation of that name is called with these inputs.
    """

    def operation_of(operation_fn: Callable, operation: Any) -> Callable:
        def call(*args: Any, **kwargs: Any) -> Any:
            inputs = keras.tree.flatten((args, kwargs))
            with observe(operation.name, inputs):
                return operation_fn(operation)(*args, **kwargs)

        return call

    graph = SegmentedGraph(model, [], ExecutionPlan())

    def run(inputs: Any, operation_fn: Callable, call_fn: Any = None) -> Any:
        function = functools.partial(operation_of, operation_fn)
        return graph(inputs, function, call_fn)

    with replaced_graph(model, run):
        yield


@contextlib.contextmanager
def replaced_graph(model: keras.Model, run: Callable) -> Iterator[None]:
    """Lets something else run a functional model for a while.

    Args:
        model: The functional model.
        run: `SegmentedGraph`, or what stands for one.
    """
    own = vars(model).get("_run_through_graph")
    _compat_remat.set_run_through_graph(model, run)
    try:
        yield
    finally:
        _compat_remat.set_run_through_graph(model, own)


def _run_node(node: Any, known: dict[int, Any], operation_fn: Callable) -> None:
    """Adds what a node makes to what is known."""
    if any(id(tensor) not in known for tensor in node.input_tensors):
        # As Keras does: an input was optional.
        return
    args, kwargs = node.arguments.fill_in(known)
    result = operation_fn(node.operation)(*args, **kwargs)
    flat = keras.tree.flatten(result)
    known.update(zip(map(id, node.outputs), flat, strict=False))


def _with_gaps(
    segments: list[Segment], count: int
) -> list[tuple[Segment, bool]]:
    """Returns segments, and what lies between them, in order."""
    parts: list[tuple[Segment, bool]] = []
    position = 0
    for segment in segments:
        parts.append((Segment(position, segment.start), False))
        parts.append((segment, True))
        position = segment.stop
    parts.append((Segment(position, count), False))
    return [part for part in parts if part[0].start < part[0].stop]


def _inputs_of(nodes: list[Any]) -> list[int]:
    keys = [id(tensor) for node in nodes for tensor in node.input_tensors]
    return list(dict.fromkeys(keys))


def _outputs_of(nodes: list[Any]) -> list[int]:
    return [id(tensor) for node in nodes for tensor in node.outputs]
