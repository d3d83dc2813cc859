"""What is left when the smallest micro-batch does not fit."""

import dataclasses
from typing import Any

import keras

from keras_tfopt.memory.segmentation import lowest_peak
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.activation_profile import functional_part
from keras_tfopt.training.activation_profile import profile_spec
from keras_tfopt.training.batch import fix_rows
from keras_tfopt.training.batch import spec_of
from keras_tfopt.training.failure import StepFailure
from keras_tfopt.training.remat import lowest_remat
from keras_tfopt.training.remat import spans_as_remat

# A failure takes TensorFlow 10 to 20 seconds: not for less than this share.
_MIN_GAIN = 0.25
_MIB = 2**20


class RematRemedy:
    """Lets the activations of the smallest micro-batch be computed again.

    Segments are chosen for the lowest peak, by a trace of the step, which needs
    none of the memory that is short.
    """

    def __init__(self) -> None:
        self._model: keras.Model | None = None
        self._spec: Any = None

    def prepare(self, model: keras.Model, batch: Any) -> None:
        """Notes what will be traced if need be."""
        self._model, self._spec = model, spec_of(batch)

    def propose(
        self, failure: StepFailure, size: int
    ) -> tuple[ExecutionPlan, str] | None:
        """Returns the plan with rematerialization, where that saves enough.

        Args:
            failure: `StepFailure` with the smallest micro-batch.
            size: Integer. Its rows.
        """
        if self._model is None or failure.plan.remat is not None:
            return None
        reason = f"out of memory with {size} rows at a time, the fewest allowed"
        if functional_part(self._model) is None:
            remat = lowest_remat(self._model, self._spec)
        else:
            profile = profile_spec(self._model, fix_rows(self._spec, size))
            spans = lowest_peak(profile)
            full, low = profile.peak([]), profile.peak(spans)
            if low > (1 - _MIN_GAIN) * full:
                return None
            remat = spans_as_remat(self._model, spans)
            reason += (
                f"; {len(spans)} segments are computed again, so that their "
                f"activations take about {low / _MIB:.1f} in place of "
                f"{full / _MIB:.1f} MiB"
            )
        if remat is None:
            return None
        return dataclasses.replace(failure.plan, remat=remat), reason
