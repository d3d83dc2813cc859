"""Reading a traced graph for effects that bypass Keras variables."""

from collections.abc import Iterator
import dataclasses

import tensorflow as tf

from keras_tfopt import _compat

_PYTHON_OPS = frozenset({"PyFunc", "EagerPyFunc"})
# TensorFlow's table takes every unknown operation for a writer.
_READ_ONLY_OPS = frozenset(
    {
        "LookupTableExportV2",
        "LookupTableFindV2",
        "LookupTableSizeV2",
        "MutableHashTableOfTensorsV2",
        "MutableHashTableV2",
    }
)
_RANDOM_OPS = frozenset(
    {
        "AllCandidateSampler",
        "FixedUnigramCandidateSampler",
        "FractionalAvgPool",
        "FractionalMaxPool",
        "LearnedUnigramCandidateSampler",
        "LogUniformCandidateSampler",
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGammaV2",
        "RandomGamma",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "SampleDistortedBoundingBox",
        "SampleDistortedBoundingBoxV2",
        "ThreadUnsafeUnigramCandidateSampler",
        "TruncatedNormal",
        "UniformCandidateSampler",
    }
)


@dataclasses.dataclass(frozen=True)
class Effects:
    """What a graph does besides computing its outputs.

    Attributes:
        writes: Names of the TensorFlow variables that it writes.
        writers: For each of those, the name of an operation that writes it,
            which begins with the names of model and layer.
        variables: Those variables, where they could be found.
        python_ops: Names of stateful calls into Python.
        random_ops: Types of operations that draw from a hidden generator.
    """

    writes: tuple[str, ...] = ()
    writers: tuple[str, ...] = ()
    variables: tuple[tf.Variable, ...] = ()
    python_ops: tuple[str, ...] = ()
    random_ops: tuple[str, ...] = ()


def find_effects(function: tf.types.experimental.ConcreteFunction) -> Effects:
    """Returns the effects of a traced function.

    Writes of Keras variables are kept out of the graph while it is traced; what
    is found here came past Keras.

    Args:
        function: A concrete function.

    Returns:
        `Effects`.
    """
    graph = function.graph
    variables, writers = _resolve(graph)
    nodes = list(_all_nodes(graph))
    return Effects(
        writes=tuple(writers),
        writers=tuple(writers.values()),
        variables=tuple(variables),
        python_ops=tuple(n.name for n in nodes if n.op in _PYTHON_OPS),
        random_ops=tuple(sorted({n.op for n in nodes} & _RANDOM_OPS)),
    )


def unrepeatable(operations: list[tf.Operation]) -> list[str]:
    """Describes operations that would not do the same a second time.

    Args:
        operations: Operations of a graph; functions that they call are looked
            into.
    """
    reasons = []
    for operation in operations:
        if operation.type in _RANDOM_OPS:
            reasons.append(f"'{operation.name}' draws from a hidden generator")
        elif operation.type in _PYTHON_OPS:
            reasons.append(f"'{operation.name}' calls a Python function")
        elif _written(operation):
            reasons.append(f"'{operation.name}' writes a variable past Keras")
        for graph in _compat.called_graphs(operation):
            reasons += unrepeatable(graph.get_operations())
    return reasons


def _all_nodes(graph: tf.Graph) -> Iterator[tf.compat.v1.NodeDef]:
    """Iterates over the nodes of a graph and of the functions that it calls."""
    definition = graph.as_graph_def()
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def _resolve(
    graph: tf.Graph,
) -> tuple[list[tf.Variable], dict[str, str]]:
    """Finds the variables that are written, and who writes them."""
    known = {id(variable.handle): variable for variable in graph.variables}
    outer = {id(inner): external for external, inner in graph.captures}
    variables: dict[int, tf.Variable] = {}
    writers: dict[str, str] = {}
    for operation in graph.get_operations():
        for handle in _written(operation):
            variable = known.get(id(outer.get(id(handle))))
            if variable is not None:
                variables[id(variable)] = variable
            name = handle.name if variable is None else variable.name
            writers.setdefault(name, operation.name)
    return list(variables.values()), writers


def _written(operation: tf.Operation) -> list[tf.Tensor]:
    """Returns the resource inputs that an operation writes."""
    if operation.type in _READ_ONLY_OPS:
        return []
    handles = _compat.written_resources(operation)
    if not handles:
        return []
    # The table knows which inputs of a function are only read, but by its own
    # idea of reading.
    bodies = _compat.called_graphs(operation)
    return [
        h for h in handles if not bodies or _is_written(h, operation, bodies)
    ]


def _is_written(
    handle: tf.Tensor, operation: tf.Operation, bodies: list[tf.Graph]
) -> bool:
    """Whether a function that an operation calls writes a resource."""
    positions = [
        index for index, t in enumerate(operation.inputs) if t is handle
    ]
    for body in bodies:
        # The predicate of a conditional comes before the arguments.
        first = len(operation.inputs) - len(body.inputs)
        for position in positions:
            if position < first:
                continue
            inner = body.inputs[position - first]
            if any(
                inner is written
                for consumer in inner.consumers()
                for written in _written(consumer)
            ):
                return True
    return False
