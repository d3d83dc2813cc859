"""Puts our classes where Keras' own tests find `keras.Model` and its kin.

Keras itself keeps its classes: only the names that a test imports are replaced,
so that its models are those of a user who swapped the name and nothing else.
"""

import collections
import dataclasses
import sys

import keras
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.models.functional import Functional

from keras_tfopt import AccumMixin
from keras_tfopt import AccumModel
from keras_tfopt.accumulation import TRAINING
from keras_tfopt.training import mixin
from keras_tfopt.training.failure import Remedy
from keras_tfopt.training.guarded_step import GuardedStep
from keras_tfopt.training.model import FunctionalAccumModel


class AccumTrainer(AccumMixin, TensorFlowTrainer):
    """Keras' tests mix a trainer into layers, without `keras.Model`."""


@keras.saving.register_keras_serializable(package="upstream")
class AccumSequential(AccumMixin, keras.Sequential):
    """Keras' tests subclass, clone and save Sequential models."""


REPLACED = {
    TensorFlowTrainer: AccumTrainer,
    keras.Model: AccumModel,
    keras.Sequential: AccumSequential,
    Functional: FunctionalAccumModel,
}
# Where Keras' code finds them too, so only while tests are imported.
DEFINING_MODULES = (
    "keras.src.backend.tensorflow.trainer",
    "keras.src.models.functional",
    "keras.src.models.model",
    "keras.src.models.sequential",
)
# Where tests look them up while they run.
PUBLIC_MODULES = ("keras", "keras.models", "keras.src", "keras.src.models")


@dataclasses.dataclass
class Counts:
    """What ran.

    Attributes:
        whole: Unsplit training steps through the guarded step.
        split: Split training steps through the guarded step.
        evaluation: Steps of `evaluate` through the guarded step.
        keras_functions: Training functions that Keras made.
        refusals: Why models were trained unsplit.
    """

    whole: int = 0
    split: int = 0
    evaluation: int = 0
    keras_functions: int = 0
    refusals: collections.Counter = dataclasses.field(
        default_factory=collections.Counter
    )


class Observer(Remedy):
    """A remedy that counts steps and lets models train that cannot be split.

    For users a refusal is an error. Here it would hide whether a test passes
    otherwise.
    """

    def __init__(self, counts, is_training):
        self._counts = counts
        self._is_training = is_training

    def propose(self, failure):
        message = str(failure.error)
        if not failure.plan.is_split or "cannot be split" not in message:
            return None
        self._counts.refusals[message] += 1
        return _unsplit(failure.plan), "The model cannot be split."

    def review(self, plan, rows, shape_key, steps):
        del rows, shape_key
        if not self._is_training:
            self._counts.evaluation += steps
        elif plan.is_split:
            self._counts.split += steps
        else:
            self._counts.whole += steps


class Replacement:
    """Replaces names for a test run.

    Args:
        microbatch_size: Integer or `None`. What models get by default.
    """

    def __init__(self, microbatch_size):
        self.counts = Counts()
        self._restored = []
        AccumMixin.__init__.__kwdefaults__["microbatch_size"] = microbatch_size
        self._observe_steps()
        self._allow_refusals()
        _replace_names(PUBLIC_MODULES)

    def begin_imports(self):
        """Call before test modules are imported."""
        self._restored = _replace_names(DEFINING_MODULES)

    def end_imports(self):
        """Call before tests run."""
        for module, name, value in self._restored:
            setattr(module, name, value)

    def _observe_steps(self):
        counts = self.counts

        class ObservedStep(GuardedStep):
            def __init__(self, model, settings, mode=TRAINING):
                super().__init__(model, settings, mode)
                self._observer = Observer(counts, mode is TRAINING)

            def reset(self):
                super().reset()
                self.control.remedies.append(self._observer)

        mixin.GuardedStep = ObservedStep
        make_train_function = TensorFlowTrainer.make_train_function

        def make_and_count(model, force=False):
            counts.keras_functions += 1
            return make_train_function(model, force)

        TensorFlowTrainer.make_train_function = make_and_count

    def _allow_refusals(self):
        check_splittable = mixin.check_splittable

        def check(model):
            try:
                check_splittable(model)
            except ValueError as error:
                self.counts.refusals[str(error)] += 1
                model._settings.plan = _unsplit(model.plan)

        mixin.check_splittable = check


def _unsplit(plan):
    return dataclasses.replace(
        plan, accumulation_steps=None, microbatch_size=None
    )


def _replace_names(modules):
    """Returns what was replaced: module, name and former value."""
    replaced = []
    for module in map(sys.modules.__getitem__, modules):
        for name, value in list(vars(module).items()):
            if isinstance(value, type) and value in REPLACED:
                replaced.append((module, name, value))
                setattr(module, name, REPLACED[value])
    return replaced
