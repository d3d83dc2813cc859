import keras
import pytest

from keras_tfopt import AccumModel
from keras_tfopt import ExecutionPlan
from keras_tfopt import callbacks
from tests import builders


class ChangesThePlan(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.change_plan(ExecutionPlan(microbatch_size=2), "on a whim")


def fit(model, *added, verbose=0):
    x, y = builders.regression_data(rows=12)
    model.fit(x, y, batch_size=4, verbose=verbose, callbacks=list(added))


def test_tells_what_happened(capsys):
    summary = callbacks.TrainingSummary()
    model = builders.stack(AccumModel, [])

    fit(model, summary, ChangesThePlan(), verbose=2)

    printed = capsys.readouterr().out
    assert summary.rows[0].figure.startswith("3 in ")
    assert "on a whim" in printed
    # A second one counts anew.
    fit(model, summary)
    assert summary.rows[0].figure.startswith("3 in ")


@pytest.mark.parametrize(
    ("verbose", "of_fit", "is_printed"),
    [("auto", 0, False), (0, 2, False), (1, 0, True)],
)
def test_prints_where_it_shall(capsys, verbose, of_fit, is_printed):
    summary = callbacks.TrainingSummary(verbose)
    fit(builders.stack(keras.Model, []), summary, verbose=of_fit)
    assert ("updates" in capsys.readouterr().out) is is_printed
    assert summary.rows


def test_comes_after_an_exception():
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                raise RuntimeError("the user's own")

    summary = callbacks.TrainingSummary(0)
    model = builders.stack(keras.Model, [])
    with pytest.raises(RuntimeError, match="the user's own"):
        fit(model, summary, Fails())
    # The sampler sees that `fit` is gone.
    summary._session.end()
    assert summary.rows[0].figure.startswith("2 in ")


def test_refuses():
    with pytest.raises(ValueError, match="verbose=3"):
        callbacks.TrainingSummary(verbose=3)
