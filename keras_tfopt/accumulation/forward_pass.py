"""The forward part of a training step, run for what it reveals."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.accumulation.microstep import StepMode
from keras_tfopt.accumulation.scope import RecordingScope


@dataclasses.dataclass
class ForwardPass:
    """Model, loss and metrics on one batch, whose parts can be run again.

    Attributes:
        model: A compiled Keras model.
        mode: `StepMode`.
        scope: `RecordingScope` that keeps all writes.
        x: Inputs.
        y: Targets.
        sample_weight: Weights or `None`.
        y_pred: Predictions, once the model has run.
        logs: What `compute_metrics` returned.
        early: Variables that were written before the metrics' turn.
    """

    model: keras.Model
    mode: StepMode
    scope: RecordingScope
    x: Any
    y: Any
    sample_weight: Any
    y_pred: Any = None
    logs: Any = None
    early: list[keras.Variable] = dataclasses.field(default_factory=list)

    def run(self) -> None:
        """Runs all parts, which builds what is not built yet."""
        loss = self.run_model()
        self.early = list(self.scope.written)
        _compat.update_loss_tracker(self.model, loss, self.x)
        self.logs = self.run_metrics()

    def run_model(self) -> tf.Tensor:
        """Runs the model and its loss."""
        self.y_pred = _compat.forward(self.model, self.x, self.mode.training)
        return self.run_loss()

    def run_loss(self) -> tf.Tensor:
        """Runs the loss on the predictions."""
        return _compat.compute_loss(
            self.model,
            self.x,
            self.y,
            self.y_pred,
            self.sample_weight,
            self.mode.training,
        )

    def run_metrics(self) -> dict[str, Any]:
        """Runs the metrics on the predictions."""
        return self.model.compute_metrics(
            self.x, self.y, self.y_pred, self.sample_weight
        )
