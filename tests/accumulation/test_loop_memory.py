"""A split batch needs the memory of one micro-batch."""

from tests import memory_figures


def test_split_batch_needs_what_one_microbatch_needs():
    figures = memory_figures.measure()
    # The yardstick is real: activations are the most of it.
    assert figures["stock_microbatch"] > figures["activations"]
    assert figures["split_batch"] <= 1.25 * figures["stock_microbatch"]
    assert figures["split_batch"] <= 0.25 * figures["stock_batch"]
