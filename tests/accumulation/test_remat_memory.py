"""Rematerialization lowers the peak of a real allocator."""

import pytest

from tests import memory_figures


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        ("remat_microbatch", "stock_microbatch"),
        ("remat_batch", "split_batch"),
        ("remat_lowest", "stock_microbatch"),
        ("remat_xla_microbatch", "xla_microbatch"),
        ("remat_xla_batch", "xla_batch"),
    ],
)
def test_the_peak_falls_below_two_thirds(kind, kept):
    figures = memory_figures.measure()
    # The yardstick is real: activations are the most of it.
    layers = 0.5 if "xla" in kept else 1
    assert figures[kept] > layers * figures["activations"]
    assert figures[kind] < 2 / 3 * figures[kept]
