"""A throw-away forward pass that finds out what a model's step does."""

from collections.abc import Callable
import dataclasses
from typing import Any

import keras

from keras_tfopt.accumulation.forward_pass import ForwardPass
from keras_tfopt.accumulation.microstep import StepMode
from keras_tfopt.accumulation.scope import RecordingScope


@dataclasses.dataclass
class Discovery:
    """What the training step of a model does besides its arithmetic.

    Attributes:
        written: Keras variables that the forward pass, the loss and the
            metrics write, in or out of Keras' lists.
        loss_evaluations: How many losses are divided by a denominator.
        assumptions: What must be assumed to split a batch, one sentence each.
    """

    written: list[keras.Variable] = dataclasses.field(default_factory=list)
    loss_evaluations: int = 0
    assumptions: list[str] = dataclasses.field(default_factory=list)


def discover(
    model: keras.Model,
    run: Callable[[Callable[[Any], None]], None],
    mode: StepMode,
    look: Callable[[ForwardPass, Discovery], None] | None = None,
) -> Discovery:
    """Runs a model's forward pass for what it reveals, and builds the model.

    Nothing is written: the pass runs in a recording scope. Variables that the
    model, its loss and its metrics still have to create are created.

    Args:
        model: A compiled Keras model.
        run: Callable that takes a function of a batch and runs or traces it.
        mode: `StepMode`.
        look: Callable that looks closer at the pass, in its scope, and notes
            what it finds. Defaults to none.

    Returns:
        `Discovery`.
    """
    observed: list[Discovery] = []

    def observe(data: Any) -> None:
        # TensorFlow traces twice where variables are created.
        observed.append(found := Discovery())
        batch = keras.utils.unpack_x_y_sample_weight(data)
        with RecordingScope() as scope:
            forward_pass = ForwardPass(model, mode, scope, *batch)
            forward_pass.run()
            found.written.extend(scope.written)
            if look is not None:
                look(forward_pass, found)

    run(observe)
    return observed[-1]
