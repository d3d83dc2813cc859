"""The ladder grows back, but not what somebody else has just made smaller."""

from keras_tfopt import ExecutionPlan
from keras_tfopt.training.microbatch_ladder import MicrobatchLadder

ROWS = 16
WHOLE, HALF, QUARTER = (
    ExecutionPlan(),
    ExecutionPlan(microbatch_size=8),
    ExecutionPlan(microbatch_size=4),
)


def ladder_after(plan, steps):
    ladder = MicrobatchLadder(WHOLE, min_microbatch_size=1, grow_after=3)
    assert review(ladder, plan, steps) is None
    return ladder


def review(ladder, plan, steps=1, rows=ROWS):
    proposal = ladder.review(plan, rows, "x", steps)
    return proposal and proposal[0]


def steps_until_growth(ladder, plan):
    return next(n for n in range(1, 99) if review(ladder, plan) is not None)


def test_what_somebody_else_made_smaller_counts_as_a_failure():
    ladder = ladder_after(WHOLE, steps=50)
    # In spite of the quiet steps before.
    assert review(ladder, HALF) is None
    assert steps_until_growth(ladder, HALF) == 3
    # It has grown, and is made smaller again.
    assert review(ladder, WHOLE) is None
    assert review(ladder, HALF) is None
    assert steps_until_growth(ladder, HALF) == 6


def test_a_short_batch_does_not_hide_it():
    ladder = ladder_after(WHOLE, steps=50)
    assert review(ladder, HALF, rows=2) is None
    assert steps_until_growth(ladder, HALF) == 3


def test_its_own_growth_is_none():
    ladder = ladder_after(QUARTER, steps=1)
    assert review(ladder, QUARTER, steps=2) == HALF
    assert review(ladder, HALF, steps=2) is None
    assert review(ladder, HALF) == WHOLE


def test_a_restored_ladder_knows_the_plan_before():
    ladder = ladder_after(WHOLE, steps=1)
    assert review(ladder, HALF) is None
    restored = MicrobatchLadder(WHOLE, min_microbatch_size=1, grow_after=3)
    restored.set_state(ladder.get_state())
    assert restored.get_state() == ladder.get_state()
    assert steps_until_growth(restored, HALF) == 3
