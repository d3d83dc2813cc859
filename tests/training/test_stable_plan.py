import pytest
import tensorflow as tf

from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.failure import StepFailure
from keras_tfopt.training.failure import StepReport
from keras_tfopt.training.stable_plan import StablePlan

WHOLE = ExecutionPlan()
SPLIT = ExecutionPlan(microbatch_size=4)


class Run:
    """Steps whose times are given, under a remedy."""

    def __init__(self, max_slowdown=1.2, steps=3):
        self.now = 0.0
        self.remedy = StablePlan(max_slowdown, steps, lambda: self.now)

    def steps(self, plan, seconds, count, rows=8, per_call=1):
        """Returns the first proposal, or `None`."""
        batch = tf.zeros((rows, 2))
        for _ in range(count):
            self.now += seconds * per_call
            report = StepReport(plan, batch, per_call, seconds, None)
            self.remedy.observe(report)
            proposal = self.remedy.review(plan, rows, "", per_call)
            if proposal:
                return proposal
        return None

    def fail(self, plan):
        failure = StepFailure(MemoryError(), plan, 8, "", (plan,))
        assert self.remedy.propose(failure) is None


def test_slower_plan_is_taken_back():
    run = Run()
    assert run.steps(WHOLE, 1.0, 10) is None

    plan, reason = run.steps(SPLIT, 1.5, 4)

    assert plan == WHOLE
    assert "3 calls took 1.50 times as long" in reason


@pytest.mark.parametrize("seconds", [0.5, 1.0, 1.15])
def test_plan_that_is_about_as_fast_stays(seconds):
    run = Run()
    run.steps(WHOLE, 1.0, 10)
    assert run.steps(SPLIT, seconds, 10) is None
    # It is what later plans are compared with.
    plan, _ = run.steps(WHOLE, 1.4, 10)
    assert plan == SPLIT


def test_judged_only_after_its_steps_and_without_its_first():
    run = Run(steps=3)
    run.steps(WHOLE, 1.0, 10)
    assert run.steps(SPLIT, 100.0, 1) is None
    assert run.steps(SPLIT, 1.0, 3) is None
    assert run.steps(SPLIT, 1.0, 10) is None


def test_one_slow_step_is_no_slow_plan():
    run = Run(steps=5)
    run.steps(WHOLE, 1.0, 10)
    run.steps(SPLIT, 1.0, 3)
    assert run.steps(SPLIT, 60.0, 1) is None
    assert run.steps(SPLIT, 1.0, 10) is None


def test_other_shapes_are_not_compared():
    run = Run()
    run.steps(WHOLE, 1.0, 10, rows=8)
    assert run.steps(SPLIT, 9.0, 10, rows=64) is None


def test_plan_that_failed_is_not_returned_to():
    run = Run()
    run.steps(WHOLE, 1.0, 10)
    run.fail(WHOLE)
    assert run.steps(SPLIT, 5.0, 10) is None


def test_steps_of_a_call_share_its_time():
    run = Run()
    run.steps(WHOLE, 1.0, 10)
    assert run.steps(SPLIT, 1.0, 10, per_call=8) is None
