"""What the policy answers to failures, in the modes that measure."""

import types

import keras
import pytest
import tensorflow as tf

from keras_tfopt import ExecutionPlan
from keras_tfopt.compilation import CompilationSettings
from keras_tfopt.training.failure import StepFailure
from keras_tfopt.training.failure import StepReport
from keras_tfopt.training.xla_policy import XLAPolicy
from tests import models

PLAIN, COMPILED = ExecutionPlan(), ExecutionPlan(jit_compile=True)
BATCH = tf.ones((4, 2))
NO_MEMORY = tf.errors.ResourceExhaustedError(None, None, "no room")


def _policy(mode):
    policy = XLAPolicy(CompilationSettings(mode), "training", False)
    policy.prepare(models.regressor(keras.Model), BATCH, PLAIN)
    return policy


def _failure(error, ran):
    return StepFailure(error, PLAIN, 4, "", (ran,), 2.0)


def _run_plain(policy):
    function = types.SimpleNamespace(compiled=None)
    assert policy.adapt(PLAIN, BATCH) == PLAIN
    policy.observe(StepReport(PLAIN, BATCH, 1, 1.0, function))


def test_a_trial_ends_where_only_xla_runs_out_of_memory():
    policy = _policy("auto")
    _run_plain(policy)
    assert policy.adapt(PLAIN, BATCH) == COMPILED
    plan, reason = policy.propose(_failure(NO_MEMORY, COMPILED))
    assert plan == PLAIN
    assert "out of memory with XLA" in reason
    assert policy.adapt(PLAIN, BATCH) == PLAIN
    assert policy.review(PLAIN, 4, "", 1) is None
    # Another plan is another trial.
    other = ExecutionPlan(microbatch_size=2)
    policy.adapt(other, BATCH)
    policy.observe(
        StepReport(other, BATCH, 1, 1.0, types.SimpleNamespace(compiled=None))
    )
    assert policy.adapt(other, BATCH).jit_compile


@pytest.mark.parametrize("ran", [PLAIN, COMPILED], ids=["plain", "compiled"])
@pytest.mark.parametrize("mode", ["on", "auto"])
def test_other_shortages_are_for_others(mode, ran):
    assert _policy(mode).propose(_failure(NO_MEMORY, ran)) is None


def test_a_failure_is_forgotten_if_the_step_fails_without_xla():
    policy = _policy("on")
    error = ValueError("data")
    assert policy.propose(_failure(error, COMPILED))[0] == PLAIN
    # Memory may be short for both, and says nothing about XLA.
    assert policy.propose(_failure(NO_MEMORY, PLAIN)) is None
    assert policy.resume(PLAIN) == PLAIN
    policy.propose(_failure(error, COMPILED))
    assert policy.propose(_failure(error, PLAIN)) is None
    assert policy.resume(PLAIN) == COMPILED
    stats = policy.ledger.stats()
    assert (stats.failures, stats.compile_seconds) == (2, 4.0)
