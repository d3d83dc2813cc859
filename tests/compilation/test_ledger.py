"""The account of compilations adds up."""

import pytest

from keras_tfopt.compilation import CompilationSettings
from keras_tfopt.compilation import CompilationStats
from keras_tfopt.compilation.ledger import CompilationLedger


def _shapes(rows, length=3):
    return (("float32", (rows, length)),)


def _ledger(**settings):
    return CompilationLedger(CompilationSettings(**settings))


def test_compile_seconds_are_what_first_calls_took_longer():
    ledger = _ledger()
    assert ledger.note_steps("split", _shapes(8), True, 2, 5.0)
    # Not known yet what the steps themselves take.
    assert ledger.compile_seconds == 5.0
    assert not ledger.note_steps("split", _shapes(8), True, 1, 0.5)
    assert not ledger.note_steps("split", _shapes(8), True, 3, 1.5)
    assert ledger.compile_seconds == 4.0
    ledger.note_steps("split", _shapes(4), False, 1, 2.0)
    ledger.note_failure(1.0)
    stats = ledger.stats()
    assert stats == CompilationStats(
        successes=1,
        failures=1,
        compile_seconds=5.0,
        training_seconds=10.0,
        compiled_steps=6,
        compiled_shapes=(_shapes(8),),
        uncompiled_shapes=(_shapes(4),),
    )
    assert stats.attempts == 2
    assert stats.success_ratio == 0.5
    assert stats.compile_share == 0.5


def test_a_first_call_that_was_faster_costs_nothing():
    ledger = _ledger()
    ledger.note_steps(None, _shapes(8), True, 1, 1.0)
    ledger.note_steps(None, _shapes(8), True, 1, 2.0)
    assert ledger.compile_seconds == 0


def test_nothing_is_no_ratio():
    stats = CompilationStats()
    assert stats.success_ratio is None
    assert stats.compile_share is None


@pytest.mark.parametrize(
    "settings, shorter, longer, wider",
    [
        ({}, False, True, True),
        ({"compile_short_batches": True}, True, True, True),
        ({"on_new_shape": "fallback"}, False, False, False),
        ({"on_new_shape": "pad"}, False, False, False),
        ({"max_shapes": 1}, False, False, False),
        ({"max_compile_seconds": 0.5}, False, False, False),
    ],
)
def test_what_is_admitted(settings, shorter, longer, wider):
    ledger = _ledger(**settings)
    assert ledger.admits("split", _shapes(8))
    ledger.note_steps("split", _shapes(8), True, 1, 1.0)
    assert ledger.admits("split", _shapes(8))
    assert ledger.admits("split", _shapes(4)) == shorter
    assert ledger.admits("split", _shapes(9)) == longer
    assert ledger.admits("split", _shapes(8, 5)) == wider
    # Another way of splitting is another function, under the same limits.
    limited = ledger.is_exhausted
    assert ledger.admits("split", _shapes(4), is_padded=True) == (not limited)
    assert ledger.admits("other", _shapes(4)) == (not limited)
