"""What XLA fused, read from what it made."""

import dataclasses

from keras_tfopt import _compat

# They compute nothing, or are not stored where they are used.
_FREE = frozenset(
    {"bitcast", "broadcast", "constant", "get-tuple-element", "iota",
     "parameter", "tuple"}
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class FusionFigures:
    """What XLA fused in a function. Loops count once.

    Attributes:
        fusions: Integer. Kernels that do the work of several operations.
        fused_operations: Integer. Operations in them.
        unmaterialized_bytes: Integer. An estimate: sizes of the intermediate
            values inside of fusions, which are not written to memory. Some
            would have been reused or computed anew without fusion, too.
    """

    fusions: int
    fused_operations: int
    unmaterialized_bytes: int


def fusion_figures(serialized: bytes) -> FusionFigures:
    """Counts the fusions of an optimized module.

    Args:
        serialized: Bytes. What `experimental_get_compiler_ir` returns for
            `"optimized_hlo_proto_serialized"`.

    Returns:
        `FusionFigures`.
    """
    module = _compat.parse_hlo(serialized)
    computations = {entry.id: entry for entry in module.computations}
    kernels = [
        computations[instruction.called_computation_ids[0]]
        for computation in module.computations
        for instruction in computation.instructions
        if instruction.opcode == "fusion"
    ]
    working = [
        (
            kernel.root_id,
            [i for i in kernel.instructions if i.opcode not in _FREE],
        )
        for kernel in kernels
    ]
    # XLA calls the kernel of a single operation a fusion, too.
    fused = [(root, inner) for root, inner in working if len(inner) > 1]
    return FusionFigures(
        len(fused),
        sum(len(inner) for _, inner in fused),
        sum(
            _compat.hlo_shape_bytes(instruction.shape)
            for root, inner in fused
            for instruction in inner
            if instruction.id != root
        ),
    )
