"""What a real allocator hands out at the peak of a step."""

import pytest

from tests import memory_figures


@pytest.fixture(scope="module")
def figures():
    return memory_figures.measure()


def test_split_batch_needs_what_one_microbatch_needs(figures):
    # The yardstick is real: activations are the most of it.
    assert figures["stock_microbatch"] > figures["activations"]
    assert figures["split_batch"] <= 1.25 * figures["stock_microbatch"]
    assert figures["split_batch"] <= 0.25 * figures["stock_batch"]


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
def test_rematerialization_needs_less_than_two_thirds(figures, kind, kept):
    layers = 0.5 if "xla" in kept else 1
    assert figures[kept] > layers * figures["activations"]
    assert figures[kind] < 2 / 3 * figures[kept]


def test_a_chained_commit_needs_less_than_half(figures):
    # It has the temporaries of one variable at a time.
    assert figures["commit"] > 0.5
    assert figures["chained_commit"] < figures["commit"] / 2
