"""A step that runs again is applied once."""

import pytest
import tensorflow as tf

from keras_tfopt.training.applied_steps import AppliedSteps


def test_step_is_applied_once():
    steps = AppliedSteps(tf.distribute.get_strategy(), 2)
    total = tf.Variable(0)

    @tf.function(autograph=False)
    def run(step):
        steps.apply_once(step, lambda: total.assign_add(1))

    totals = []
    # More steps than places.
    for _ in range(3):
        step = steps.new_step()
        for _ in range(2):
            run(step)
            totals.append(int(total))
    assert totals == [1, 1, 2, 2, 3, 3]


def test_step_of_which_a_part_was_written_is_applied_again():
    steps = AppliedSteps(tf.distribute.get_strategy(), 2)
    first, last = tf.Variable(0), tf.Variable(0)

    @tf.function(autograph=False)
    def run(step, is_broken):
        def apply():
            first.assign_add(1)
            check = tf.debugging.Assert(tf.logical_not(is_broken), [step])
            with tf.control_dependencies([check]):
                last.assign_add(1)

        steps.apply_once(step, apply)

    step = steps.new_step()
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(step, tf.constant(True))
    assert int(last) == 0
    run(step, tf.constant(False))
    run(step, tf.constant(False))
    assert int(last) == 1
