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
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGammaV2",
        "RandomGamma",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    }
)


@dataclasses.dataclass(frozen=True)
class Effects:
    """What a graph does besides computing its outputs.

    Attributes:
        writes: Names of the TensorFlow variables that it writes.
        variables: Those variables, where they could be found.
        python_ops: Names of stateful calls into Python.
        random_ops: Types of operations that draw from a hidden generator.
    """

    writes: tuple[str, ...] = ()
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
    handles = [
        handle
        for operation in graph.get_operations()
        if operation.type not in _READ_ONLY_OPS
        for handle in _compat.written_resources(operation)
    ]
    variables, names = _resolve(graph, handles)
    nodes = list(_all_nodes(graph))
    return Effects(
        writes=tuple(names),
        variables=tuple(variables),
        python_ops=tuple(n.name for n in nodes if n.op in _PYTHON_OPS),
        random_ops=tuple(sorted({n.op for n in nodes} & _RANDOM_OPS)),
    )


def _all_nodes(graph: tf.Graph) -> Iterator[tf.compat.v1.NodeDef]:
    """Iterates over the nodes of a graph and of the functions that it calls."""
    definition = graph.as_graph_def()
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def _resolve(
    graph: tf.Graph, handles: list[tf.Tensor]
) -> tuple[list[tf.Variable], list[str]]:
    """Finds the variables behind resource tensors of a function's graph."""
    known = {id(variable.handle): variable for variable in graph.variables}
    outer = {id(inner): external for external, inner in graph.captures}
    variables: dict[int, tf.Variable] = {}
    names: dict[str, None] = {}
    for handle in handles:
        variable = known.get(id(outer.get(id(handle))))
        if variable is not None:
            variables[id(variable)] = variable
        names[handle.name if variable is None else variable.name] = None
    return list(variables.values()), list(names)
