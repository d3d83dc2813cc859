"""Whether training waits for its data."""

import logging
from typing import Any

import tensorflow as tf

from keras_tfopt.data.pipeline import advise_on_pipeline
from keras_tfopt.telemetry.callback import TelemetryCallback
from keras_tfopt.telemetry.history import History
from keras_tfopt.training import guard_of
from keras_tfopt.training import release_guard
from keras_tfopt.training.checks import is_manageable

_logger = logging.getLogger("keras_tfopt")


class InputPipelineMonitor(TelemetryCallback):
    """Warns when steps wait for data, and says what to change.

    The time of drawing a batch, against the time of training. One warning for a
    `fit`. In a model with its own `train_step` the two cannot be told apart,
    and nothing is measured.

    | Metric | Meaning |
    | --- | --- |
    | `data_wait_ratio` | share of the time of training |
    | `data_wait_seconds_total` | time of waiting |

    Example:

    ```python
    import keras
    import tensorflow as tf
    from keras_tfopt import AccumModel
    from keras_tfopt import callbacks

    inputs = keras.Input((4,))
    model = AccumModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    rows = tf.ones((64, 4)), tf.ones((64, 1))
    dataset = tf.data.Dataset.from_tensor_slices(rows).batch(4)
    monitor = callbacks.InputPipelineMonitor(dataset)
    model.fit(dataset, shuffle=False, callbacks=[monitor], verbose=0)
    print(monitor.wait_ratio)
    ```

    Args:
        dataset: `tf.data.Dataset` or `None`. What is trained on, for advice
            about its stages. Defaults to `None`, which gives general advice.
        max_wait_ratio: Float in (0, 1). Share of waiting to warn beyond.
            Defaults to 0.1.
        interval_seconds: Float. Time between two looks. Defaults to 10.

    Attributes:
        wait_ratio: Float or `None`. The last share that was measured.
        advice: Tuple of strings. What was said.

    Raises:
        ValueError: If a value is none of these.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset | None = None,
        max_wait_ratio: float = 0.1,
        interval_seconds: float = 10.0,
    ) -> None:
        super().__init__(interval_seconds)
        if not 0 < max_wait_ratio < 1:
            raise ValueError(
                "Invalid value for argument `max_wait_ratio`. Received: "
                f"max_wait_ratio={max_wait_ratio!r}. Expected: a number in "
                "(0, 1)."
            )
        if dataset is not None and not isinstance(dataset, tf.data.Dataset):
            raise ValueError(
                "Invalid value for argument `dataset`. Received: "
                f"{type(dataset).__name__}. Expected: a tf.data.Dataset or "
                "None."
            )
        self.max_wait_ratio = max_wait_ratio
        self.wait_ratio: float | None = None
        self.advice: tuple[str, ...] = ()
        self._dataset = dataset

    def on_train_begin(self, logs: Any = None) -> None:
        """Joins the session, with a guard that sees when batches are drawn."""
        # Keras draws them inside of its own step.
        if is_manageable(self.model):
            guard_of(self.model)
        super().on_train_begin(logs)

    def on_train_end(self, logs: Any = None) -> None:
        """Leaves the session, and gives the guard back."""
        super().on_train_end(logs)
        release_guard(self.model, "train")

    def open(self, history: History) -> None:
        """Begins anew."""
        self.wait_ratio, self.advice = None, ()

    def publish(self, history: History) -> None:
        """Looks, and warns once."""
        snapshot = history.latest
        values = {} if snapshot is None else snapshot.of("data_wait_ratio")
        self.wait_ratio = next(iter(values.values()), None)
        if self.advice or self.wait_ratio is None:
            return
        if self.wait_ratio > self.max_wait_ratio:
            self.advice = advise_on_pipeline(self._dataset)
            _logger.warning(
                "Training waits for data %.0f %% of its time. %s",
                100 * self.wait_ratio,
                " ".join(self.advice),
            )
