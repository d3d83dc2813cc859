"""An optimizer has all of its slots or none, also where memory runs out."""

import keras
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import OutOfMemoryError
from keras_tfopt import callbacks
from keras_tfopt.accumulation.optimizer_build import build_optimizer
from tests import models
from tests.equivalence import assert_same
from tests.equivalence import run

OPTIMIZERS = {
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "amsgrad": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, centered=True),
    "ema": lambda: keras.optimizers.Adam(0.01, use_ema=True),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01)
    ),
}


def without_memory(optimizer, slots, times):
    """Lets an optimizer run out of memory after some slots, some times."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    add_variable = inner.add_variable
    left = [slots, times]

    def limited(*args, **kwargs):
        if left[1] and not left[0]:
            left[:] = slots, left[1] - 1
            raise tf.errors.ResourceExhaustedError(None, None, "no room")
        left[0] -= 1
        return add_variable(*args, **kwargs)

    vars(inner)["add_variable"] = limited
    return optimizer


def trained(make_optimizer):
    def make(cls, **settings):
        return models.regressor(
            cls, {"optimizer": make_optimizer()}, **settings
        )

    return make


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_built_at_the_second_attempt(name):
    make = OPTIMIZERS[name]
    expected = run(trained(make), models.fit, keras.Model)

    def limited():
        return without_memory(make(), slots=2, times=1)

    assert_same(run(trained(limited), models.fit, AccumModel), expected)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_refused_without_a_trace(name, tmp_path):
    optimizer = without_memory(OPTIMIZERS[name](), slots=2, times=2)
    variables = models.network(keras.Model).trainable_variables
    before = optimizer.variables
    with pytest.raises(OutOfMemoryError, match="slots.*no room") as caught:
        build_optimizer(optimizer, variables)
    assert isinstance(caught.value.__cause__, tf.errors.ResourceExhaustedError)
    assert not optimizer.built
    assert optimizer.variables == before
    build_optimizer(optimizer, variables)
    fresh = OPTIMIZERS[name]()
    fresh.build(variables)
    shapes = [tuple(v.shape) for v in optimizer.variables]
    assert shapes == [tuple(v.shape) for v in fresh.variables]
    assert len(
        tf.train.Checkpoint(optimizer=optimizer).optimizer.variables
    ) == (len(fresh.variables))


def test_smaller_micro_batches_are_not_tried():
    make = OPTIMIZERS["adamw"]
    model = models.compiled(
        models.network(keras.Model),
        optimizer=without_memory(make(), slots=2, times=2),
    )
    recovery = callbacks.OOMRecovery()
    with pytest.raises(OutOfMemoryError, match="AdamW for 4 variables"):
        models.fit(model, callbacks=[recovery])
    assert recovery.plan_events == ()
    assert int(model.optimizer.iterations) == 0
    # Now there is room.
    expected = run(trained(make), models.fit, keras.Model)
    models.fit(model, callbacks=[recovery])
    for value, wanted in zip(
        model.get_weights(), expected.model.get_weights(), strict=True
    ):
        assert value == pytest.approx(wanted, abs=1e-6)


def test_other_errors_pass_without_a_trace():
    class Broken(keras.optimizers.SGD):
        def build(self, variables):
            super().build(variables)
            raise ZeroDivisionError

    optimizer = Broken(momentum=0.9)
    before = optimizer.variables
    variables = models.network(keras.Model).trainable_variables
    with pytest.raises(ZeroDivisionError):
        build_optimizer(optimizer, variables)
    assert not optimizer.built
    assert optimizer.variables == before
