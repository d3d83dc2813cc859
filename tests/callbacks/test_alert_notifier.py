import keras
import numpy as np
import pytest

from keras_tfopt import callbacks
from tests import models

BATCHES = -(-models.ROWS // models.BATCH)


def spoiled_targets():
    y = models.Y.copy()
    y[-1] = np.nan
    return y


def test_loss_that_is_not_finite_is_told(caplog):
    told = []
    model = models.regressor(keras.Model)
    notifier = callbacks.AlertNotifier(on_alert=told.append)
    models.fit(model, y=spoiled_targets(), callbacks=[notifier])
    (event,) = told
    assert event.name == "KerasTfoptNonFinite"
    assert (event.state, event.severity) == ("firing", "critical")
    # Once in each of two epochs.
    assert event.value >= 1
    assert event.step <= 2 * BATCHES
    (said,) = [m for m in caplog.messages if "KerasTfoptNonFinite" in m]
    assert "NonFiniteRollback keeps such steps out" in said


def test_sound_training_is_not_worth_telling(caplog):
    told = []
    notifier = callbacks.AlertNotifier(on_alert=told.append)
    models.fit(models.regressor(keras.Model), callbacks=[notifier])
    assert told == []
    assert "KerasTfopt" not in caplog.text


def test_function_that_fails_does_not_end_training(caplog):
    def broken(event):
        raise RuntimeError("nobody listens")

    model = models.regressor(keras.Model)
    notifier = callbacks.AlertNotifier(on_alert=broken)
    models.fit(model, y=spoiled_targets(), callbacks=[notifier])
    assert int(model.optimizer.iterations) == 2 * BATCHES
    assert "nobody listens" in caplog.text


@pytest.mark.parametrize(
    "arguments",
    [
        {"on_alert": 3},
        {"webhook_url": "file:///a"},
        {"thresholds": {"Unknown": 1.0}},
        {"cooldown_seconds": -1},
    ],
)
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(ValueError, match="Received: "):
        callbacks.AlertNotifier(**arguments)
