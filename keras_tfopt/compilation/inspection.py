"""Looking at what XLA makes of a function."""

from collections.abc import Callable
from collections.abc import Iterator
import dataclasses
import logging
import pathlib
from typing import Any

import tensorflow as tf

from keras_tfopt.compilation.fusion import FusionFigures
from keras_tfopt.compilation.fusion import fusion_figures

_logger = logging.getLogger("keras_tfopt")

# What to write, and the stage of the compilation that it shows.
_DUMPS = {
    "before.hlo": "hlo",
    "after.hlo": "optimized_hlo",
    "after.dot": "optimized_hlo_dot",
    "after.pb": "optimized_hlo_proto_serialized",
    "before.stablehlo.mlir": "stablehlo",
}


@dataclasses.dataclass(frozen=True)
class CompiledFunction:
    """A function that XLA compiles, with the specs of its inputs.

    Attributes:
        function: A `tf.function` that takes one batch.
        spec: Nest of the specs of that batch.
    """

    function: Any
    spec: Any

    def compiler_ir(self) -> Callable[[str], Any]:
        """Returns a callable from stages to what XLA makes.

        Each call compiles anew, and runs nothing.

        Raises:
            TypeError: If a part of the batch is ragged or sparse.
        """
        batch = tf.nest.map_structure(_zeros, self.spec)
        return self.function.experimental_get_compiler_ir(batch)

    def fusion(self) -> FusionFigures:
        """Counts what XLA fuses.

        Raises:
            TypeError: If a part of the batch is ragged or sparse.
        """
        get = self.compiler_ir()
        return fusion_figures(get("optimized_hlo_proto_serialized"))

    def dump(
        self, directory: pathlib.Path, name: str, max_bytes: int
    ) -> list[pathlib.Path]:
        """Writes what XLA gets and makes, for viewers of each.

        TensorFlow's graph is for Netron and TensorBoard; the rest for viewers
        of HLO, StableHLO and Graphviz.

        Args:
            directory: Where to write.
            name: String. How the names of the files begin.
            max_bytes: Integer. What the files may take together; those that
                would take more are left out.

        Returns:
            List of the paths written.

        Raises:
            TypeError: If a part of the batch is ragged or sparse.
        """
        written = []
        for suffix, data in self._contents():
            if len(data) > max_bytes:
                _logger.warning(
                    "%s.%s is left out: its %d bytes are more than is left of "
                    "the limit, %d.",
                    name,
                    suffix,
                    len(data),
                    max_bytes,
                )
                continue
            max_bytes -= len(data)
            path = directory / f"{name}.{suffix}"
            path.write_bytes(data)
            written.append(path)
        return written

    def _contents(self) -> Iterator[tuple[str, bytes]]:
        """Yields the ends of names and what to write."""
        graph = self.function.get_concrete_function(self.spec).graph
        yield "graph.pb", graph.as_graph_def().SerializeToString()
        get = self.compiler_ir()
        for suffix, stage in _DUMPS.items():
            content = get(stage)
            is_bytes = isinstance(content, bytes)
            yield suffix, content if is_bytes else content.encode()


def _zeros(spec: Any) -> Any:
    if spec is None:
        return None
    if not isinstance(spec, tf.TensorSpec):
        raise TypeError(
            "What XLA makes is only shown for dense inputs. "
            f"Received: {spec}. Expected: a `tf.TensorSpec`."
        )
    return tf.zeros(spec.shape, spec.dtype)
