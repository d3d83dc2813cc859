"""Handwritten digits, and a network that reads them."""

from collections.abc import Callable
import dataclasses
from typing import Any

import keras
import numpy as np

from keras_tfopt.errors import MissingExtraError

NUM_CLASSES = 10
IMAGE_SHAPE = (8, 8, 1)
# The images hold grey levels from 0 to 16.
MAX_GREY = 16.0
TEST_ROWS = 360


@dataclasses.dataclass(frozen=True)
class Digits:
    """Handwritten digits, split for training and testing.

    Attributes:
        x_train: Array of shape `(rows, 8, 8, 1)`, grey levels from 0 to 1.
        y_train: Array of shape `(rows,)`, the digits as integers.
        x_test: Like `x_train`, for testing.
        y_test: Like `y_train`, for testing.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def load_digits(*, seed: int = 0) -> Digits:
    """Loads the UCI handwritten digits that scikit-learn ships.

    These are 1,797 images of 8 × 8 pixels by 43 writers. Nothing is downloaded.

    Example:

    ```python
    from keras_tfopt.benchmark.digits import load_digits

    digits = load_digits()
    assert digits.x_train.shape == (1437, 8, 8, 1)
    assert digits.x_test.shape == (360, 8, 8, 1)
    ```

    Args:
        seed: Integer. Chooses the 360 images for testing, as many of each
            digit. Defaults to 0.

    Returns:
        A `Digits`.

    Raises:
        MissingExtraError: If scikit-learn is not installed.

    Reference:

    - [Alpaydin and Kaynak, 1998](https://doi.org/10.24432/C50P49)
    """
    try:
        from sklearn import datasets
        from sklearn import model_selection
    except ImportError as error:
        raise MissingExtraError(
            "The handwritten digits come with scikit-learn, which is not "
            "installed. Install it with `pip install 'keras-tfopt[demo]'`."
        ) from error

    images, labels = datasets.load_digits(return_X_y=True)
    x = (images / MAX_GREY).astype("float32").reshape((-1, *IMAGE_SHAPE))
    y = labels.astype("int32")
    x_train, x_test, y_train, y_test = model_selection.train_test_split(
        x, y, test_size=TEST_ROWS, stratify=y, random_state=seed
    )
    return Digits(x_train, y_train, x_test, y_test)


def build_network(
    model_class: Callable[..., keras.Model] = keras.Model, **options: Any
) -> keras.Model:
    """Builds a small convolutional network for `load_digits`.

    It has no BatchNormalization, which normalizes each micro-batch by itself,
    and no Dropout, which draws a mask for each: whatever the split of a batch,
    training does the same but for rounding.

    Example:

    ```python
    from keras_tfopt import AccumModel
    from keras_tfopt.benchmark.digits import build_network

    stock = build_network()
    split = build_network(AccumModel, microbatch_size=32)
    assert stock.count_params() == split.count_params()
    ```

    Args:
        model_class: Callable that makes a model of `inputs` and `outputs`.
            Defaults to `keras.Model`.
        **options: Passed on to `model_class`.

    Returns:
        What `model_class` makes; its outputs are logits.
    """
    layers = keras.layers
    inputs = keras.Input(IMAGE_SHAPE)
    x = layers.Conv2D(32, 3, padding="same", activation="relu")(inputs)
    x = layers.Conv2D(32, 3, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(64, 3, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Flatten()(x)
    outputs = layers.Dense(NUM_CLASSES)(x)
    return model_class(inputs, outputs, **options)
