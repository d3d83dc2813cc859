"""One of several workers, or the one device that they are compared with."""

import contextlib
import os

import keras
import numpy as np

from keras_tfopt import AccumModel
from keras_tfopt import _compat_fit
from keras_tfopt import distribution
from keras_tfopt.training.batch import spec_of
from keras_tfopt.training.batch import to_tensors
from tests import equivalence
from tests import models


class Place:
    """Where a case runs: the place of a worker, how many there are, its class.

    Attributes:
        index: Integer.
        count: Integer. 1 on the one device.
        model_class: Class of the models; stock Keras on the one device.
        chosen: `ChosenStrategy`, or `None`.
    """

    def __init__(self):
        config = distribution.parse_tf_config(os.environ.get("TF_CONFIG"))
        self.index, self.count, self.chosen = 0, 1, None
        self.model_class = keras.Model
        if config is not None:
            self.index, self.count = config.task_index, len(config.workers)
            self.model_class = AccumModel
            self.chosen = distribution.strategy(
                communication="ring", timeout_seconds=240
            )

    def scope(self):
        if self.chosen is None:
            return contextlib.nullcontext()
        return self.chosen.scope()

    def run(self, make, train, **settings):
        """Makes a model in the scope, trains it, and returns the outcome."""

        def made(cls):
            kwargs = settings if self.count > 1 else {}
            with self.scope():
                return make(cls, **kwargs)

        outcome = equivalence.run(made, train, self.model_class)
        history = {
            f"history/{key}": np.asarray(values)
            for key, values in outcome.history.items()
        }
        return {**history, **outcome.variables}

    def part(self, batch):
        """Returns the rows of a batch that this worker has."""

        def take(array):
            return None if array is None else self._take(array)

        return keras.tree.map_structure(take, batch)

    def _take(self, array):
        size = -(-len(array) // self.count)
        return array[self.index * size : (self.index + 1) * size]

    def step(self, model, batch):
        """Makes one update on a batch, and returns its logs.

        Workers are given their parts without a pipeline, which takes longer
        than all else.
        """
        if self.count == 1:
            return model.train_on_batch(*batch, return_dict=True)
        part = keras.tree.map_structure(to_tensors, self.part(batch))
        with self.scope():
            _compat_fit.symbolic_build(model, spec_of(part))
        guard = model.train_function or model.make_train_function()
        model.reset_metrics()
        return {key: float(log) for key, log in guard(iter([part])).items()}

    def train(self, model, x=models.X, y=models.Y, weights=models.WEIGHTS):
        """Trains on batches of 9, 9 and 1 rows."""
        logs = []
        for rows in (slice(0, 9), slice(9, 18), slice(18, 19)):
            batch = keras.tree.map_structure(
                lambda array, rows=rows: None if array is None else array[rows],
                (x, y, weights),
            )
            logs.append(self.step(model, batch))
        return models.as_history(logs)
