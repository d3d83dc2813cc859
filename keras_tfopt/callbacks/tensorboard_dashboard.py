"""A training's values for TensorBoard."""

from collections.abc import Callable
from collections.abc import Mapping
import logging
import os
import time
from typing import Any

import keras

from keras_tfopt import _compat
from keras_tfopt.plan import check_positive_integer
from keras_tfopt.telemetry.callback import TelemetryCallback
from keras_tfopt.telemetry.history import History
from keras_tfopt.telemetry.records import CallRecord
from keras_tfopt.telemetry.records import Image
from keras_tfopt.telemetry.sources import build_info
from keras_tfopt.telemetry.worker import is_chief
from keras_tfopt.training import guarded_step_of
from keras_tfopt.training import release_guard
from keras_tfopt.training.gradient_histograms import GradientHistograms
from keras_tfopt.training.guarded_step import GuardedStep

_logger = logging.getLogger("keras_tfopt")


class TensorBoardDashboard(TelemetryCallback):
    """Shows what a training is doing in TensorBoard.

    Beside or in the place of `keras.callbacks.TensorBoard`, in the same
    `log_dir`: it writes a run of its own, `keras_tfopt`. The tab *Custom
    Scalars* is a ready dashboard; the same curves stand in *Scalars*, by group.
    *Text* has the configuration, the plan of the first step, and each change of
    plan with its reason; *HParams* the plan and the optimizer.

    Points lie at optimizer updates, also after a restart. A thread writes them,
    so that the step does not wait. Of several workers the chief writes.

    | Tag, after `keras_tfopt/` | What |
    | --- | --- |
    | `train/...` | loss, throughput, step seconds, waiting for data |
    | `memory/...`, `xla/...`, `backup/...` | as far as they are known |
    | `optimizer/...` | with `GradientMonitor` |
    | `epoch/<name>` | what Keras reports at the end of each epoch |
    | `weights/<path>`, `gradients/<path>` | histograms, if asked for |

    Example:

    ```python
    import keras
    from keras_tfopt import AccumModel
    from keras_tfopt import callbacks

    inputs = keras.Input((4,))
    model = AccumModel(inputs, keras.layers.Dense(1)(inputs), microbatch_size=4)
    model.compile("sgd", "mse")
    x, y = keras.ops.ones((16, 4)), keras.ops.ones((16, 1))
    board = callbacks.TensorBoardDashboard("logs", histogram_steps=2)
    model.fit(x, y, batch_size=8, callbacks=[board], verbose=0)
    ```

    Args:
        log_dir: String or path. Folder of the logs.
        interval_seconds: Float. Time between two points of a curve; the ends of
            epochs are always there. Defaults to 10.
        histogram_steps: Integer or `None`. Every how many updates to write the
            distribution of each weight. Defaults to `None`, never.
        images: Callable or `None`. Called as `images(model, epoch)` at the end
            of each epoch, it returns a dict of pictures by name: arrays of
            shape `(height, width, channels)`, or several of them, of bytes or
            of floats from 0 to 1. Defaults to `None`.
        gradient_histogram_steps: Integer or `None`. Every how many updates to
            count the gradients of each variable, in the graph of the step, and
            at most once a second to write them: of the whole batch, unscaled,
            and before clipping; of an embedding, the rows that were used.
            A count takes about as long as three optimizer updates.
            Works as `GradientMonitor` does, on models without a `train_step`
            of their own. Defaults to `None`, never.

    Raises:
        ValueError: If a value is none of these; in `fit`, if gradients are
            asked for and the step cannot be looked into.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        interval_seconds: float = 10.0,
        histogram_steps: int | None = None,
        images: Callable[[keras.Model, int], Mapping[str, Any]] | None = None,
        gradient_histogram_steps: int | None = None,
    ) -> None:
        super().__init__(interval_seconds)
        if not isinstance(log_dir, (str, os.PathLike)) or not str(log_dir):
            raise ValueError(
                "Invalid value for argument `log_dir`. "
                f"Received: log_dir={log_dir!r}. Expected: the path of a "
                "folder."
            )
        check_positive_integer("histogram_steps", histogram_steps)
        check_positive_integer(
            "gradient_histogram_steps", gradient_histogram_steps
        )
        if images is not None and not callable(images):
            raise ValueError(
                "Invalid value for argument `images`. "
                f"Received: images={images!r}. Expected: a callable of model "
                "and epoch, or None."
            )
        self.log_dir = os.fspath(log_dir)
        self.histogram_steps = histogram_steps
        self.images = images
        self.gradient_histogram_steps = gradient_histogram_steps
        self._run: Any = None
        self._is_complete = False
        self._steps_to_histogram = 0
        self._gradients: GradientHistograms | None = None
        self._is_counting = False
        self._last_counted = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Joins the session, and counts gradients if asked for."""
        self._is_complete = self._is_counting = False
        if self.gradient_histogram_steps is not None:
            guard = guarded_step_of(self.model)
            # One that is not built gets its variables with the first batch.
            if self.model.built:
                self._count_gradients(guard)
        super().on_train_begin(logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes what a call did; counts in a model that is built only now."""
        if self.gradient_histogram_steps is not None and not self._is_counting:
            self._count_gradients(guarded_step_of(self.model))
        super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Notes the logs of an epoch, and asks for pictures."""
        super().on_epoch_end(epoch, logs)
        if self.images is None or self._session is None:
            return
        try:
            pictures = dict(self.images(self.model, epoch))
        except Exception as error:
            _logger.warning(
                "No pictures of epoch %d, and training goes on: %s: %s",
                epoch,
                type(error).__name__,
                error,
            )
            return
        updates = self._session.updates
        for name, pixels in pictures.items():
            image = Image(time.time(), updates, f"images/{name}", pixels)
            self._session.put(image)

    def on_train_end(self, logs: Any = None) -> None:
        """Leaves the session, which ends with the last one."""
        self._is_complete = True
        super().on_train_end(logs)
        if self._is_counting and self._gradients is not None:
            guarded_step_of(self.model).remove_check(self._gradients)
            release_guard(self.model, "train")

    def open(self, history: History) -> None:
        """Begins a file."""
        if not is_chief(os.environ.get("TF_CONFIG")):
            return
        # Whoever does not use it need not have the library.
        from keras_tfopt.telemetry.tensorboard_run import TensorBoardRun

        directory = os.path.join(self.log_dir, "keras_tfopt")
        self._steps_to_histogram = self.histogram_steps or 0
        self._run = TensorBoardRun(directory, _settings(self.model))

    def handle(self, records: list[Any]) -> None:
        """Writes what is more than a value at a time."""
        if self._run is None:
            return
        for record in records:
            if isinstance(record, CallRecord):
                self._describe(record)
            else:
                self._run.write(record)
        if self._is_counting and self._gradients is not None:
            updates, rows = self._gradients.read()
            if updates != self._last_counted:
                self._last_counted = updates
                self._run.write_gradients(updates, self._gradients.names, rows)

    def publish(self, history: History) -> None:
        """Writes a point of each curve."""
        if self._run is not None:
            self._run.write_curves(history, self._is_complete)

    def close(self) -> None:
        """Ends the file."""
        run, self._run = self._run, None
        if run is not None:
            run.close(self._is_complete)

    def _count_gradients(self, guard: GuardedStep) -> None:
        """Adds the counting of gradients to the steps of the model."""
        every = self.gradient_histogram_steps
        counted = self._gradients
        if every is not None and (
            counted is None or not counted.is_of(self.model)
        ):
            counted = GradientHistograms(self.model, every)
            self._last_counted = 0
        if counted is not None:
            guard.add_check(counted)
            self._gradients, self._is_counting = counted, True

    def _describe(self, record: CallRecord) -> None:
        """Writes histograms when it is time."""
        self._run.describe(record)
        if self.histogram_steps is None:
            return
        self._steps_to_histogram -= record.steps
        if self._steps_to_histogram <= 0:
            self._steps_to_histogram = self.histogram_steps
            step = int(self.model.optimizer.iterations.numpy())
            self._run.write_weights(step, self.model.trainable_variables)


def _settings(model: keras.Model) -> dict[str, Any]:
    """Returns what a training is made of, as far as it can be told."""
    optimizer, strategy = model.optimizer, _compat.strategy_of(model)
    settings = {
        **dict(build_info().labels),
        "strategy": None if strategy is None else type(strategy).__name__,
        "dtype_policy": model.dtype_policy.name,
        "parameters": model.count_params() if model.built else None,
        "loss": _name_of(model.loss),
    }
    if optimizer is not None:
        rate = keras.ops.convert_to_numpy(optimizer.learning_rate)
        settings["optimizer"] = type(optimizer).__name__
        settings["learning_rate"] = float(rate)
    return {name: v for name, v in settings.items() if v is not None}


def _name_of(loss: Any) -> str | None:
    if loss is None or isinstance(loss, str):
        return loss
    if isinstance(loss, (list, tuple, dict)):
        return f"{len(loss)} losses"
    return str(getattr(loss, "__name__", type(loss).__name__))
