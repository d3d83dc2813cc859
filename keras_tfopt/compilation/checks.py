"""What a graph checks, and XLA does not."""

from collections.abc import Collection

import tensorflow as tf

from keras_tfopt.compilation.refusal import layer_of

# XLA removes the first kinds, and replaces indices out of range by others.
_CHECKS = frozenset(
    {"Assert", "CheckNumerics", "CheckNumericsV2", "GatherNd", "GatherV2",
     "ResourceGather", "ResourceGatherNd"}
)  # fmt: skip
_BACKWARD = "gradient_tape/"


def dropped_checks(
    graph: tf.Graph, layer_names: Collection[str]
) -> tuple[str, ...]:
    """Returns what a graph checks and XLA would not, in words.

    The backward pass repeats checks of the forward pass and is left out.

    Args:
        graph: A `tf.Graph`.
        layer_names: Names of the model and of its layers.
    """
    definition = graph.as_graph_def()
    nodes = [
        *definition.node,
        *(n for f in definition.library.function for n in f.node_def),
    ]
    found = {
        f"{node.op} of layer '{layer}'"
        for node in nodes
        if node.op in _CHECKS
        and not _is_of_shape(node)
        and not node.name.startswith(_BACKWARD)
        and (layer := layer_of(node.name, layer_names)) is not None
    }
    return tuple(sorted(found))


def _is_of_shape(node: tf.compat.v1.NodeDef) -> bool:
    """Whether a node reads the shape of something, as layers do a lot."""
    source = node.input[0].partition(":")[0] if node.input else ""
    return source.rpartition("/")[-1].startswith("Shape")
