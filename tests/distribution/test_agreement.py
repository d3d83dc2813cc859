"""What workers tell each other of errors."""

import pytest
import tensorflow as tf

from keras_tfopt import WorkerLost
from keras_tfopt.distribution import agreement
from keras_tfopt.errors import is_out_of_memory


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.ResourceExhaustedError(None, None, "OOM when é\n" * 900),
        tf.errors.UnknownError(None, None, "x" * 9000 + " MemoryError: no"),
        MemoryError("\x00" * 9000),
    ],
    ids=lambda error: type(error).__name__,
)
def test_shortages_stay_shortages(error):
    text = agreement._encode(error)
    told = agreement._decode(text.ljust(agreement._ERROR_BYTES), 3)
    assert len(text) <= agreement._ERROR_BYTES
    assert is_out_of_memory(told)


def test_other_errors_keep_their_names():
    told = agreement._decode(agreement._encode(KeyError("there is none")), 1)
    assert str(told) == "KeyError. On worker 1: 'there is none'"


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (tf.errors.UnavailableError(None, None, "Socket closed"), True),
        (
            tf.errors.InternalError(
                None, None, "Collective ops is aborted by: ..."
            ),
            True,
        ),
        (tf.errors.InternalError(None, None, "a kernel failed"), False),
        (RuntimeError("Socket closed"), False),
    ],
    ids=str,
)
def test_lost_workers(error, is_lost):
    with pytest.raises(WorkerLost if is_lost else type(error)) as raised:
        with agreement.lost_workers():
            raise error
    assert (getattr(raised.value, "code", None) == 75) == is_lost


def test_exhausted_iterators_pass():
    with pytest.raises(StopIteration):
        with agreement.lost_workers():
            raise StopIteration
