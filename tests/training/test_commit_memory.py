"""A chained commit needs the temporaries of one variable at a time."""

from tests import memory_figures


def test_chained_commit_needs_less_than_half():
    figures = memory_figures.measure()
    assert figures["commit"] > 0.5
    assert figures["chained_commit"] < figures["commit"] / 2
