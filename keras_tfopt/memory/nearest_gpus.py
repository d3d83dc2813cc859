"""Which GPUs to train on together."""

import itertools

from keras_tfopt.memory.topology import Topology

# More groups than this are not all compared.
_MOST_GROUPS = 20_000


def nearest_gpus(topology: Topology, count: int) -> tuple[int, ...]:
    """Returns the GPUs between which data takes the shortest ways.

    Gradients go round all devices in each step, so that the longest way between
    two of them counts most, and then the sum of all.

    Args:
        topology: `Topology`.
        count: Integer. How many GPUs.

    Returns:
        Tuple of places in `topology.gpus`, for `CUDA_VISIBLE_DEVICES` under
        `CUDA_DEVICE_ORDER=PCI_BUS_ID`.

    Raises:
        ValueError: If there are not as many.
    """
    available = len(topology.gpus)
    if not 1 <= count <= available:
        raise ValueError(
            f"Invalid value for argument `count`. Received: count={count}. "
            f"Expected: a number from 1 to {available}, the GPUs there are."
        )
    groups = itertools.combinations(range(available), count)
    return min(
        itertools.islice(groups, _MOST_GROUPS),
        key=lambda group: _cost(topology, group),
    )


def _cost(topology: Topology, group: tuple[int, ...]) -> tuple[int, int]:
    distances = [
        topology.links[first][second].distance
        for first, second in itertools.combinations(group, 2)
    ]
    return max(distances, default=0), sum(distances)
