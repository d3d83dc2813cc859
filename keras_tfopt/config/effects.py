"""What a configuration does: each thing with its moment, or why not."""

from collections.abc import Callable
import dataclasses
from typing import Any

# When an effect takes place: on entering the scope, when a model is prepared,
# and in `fit`.
SCOPE, PREPARE, FIT = "scope", "prepare", "fit"


@dataclasses.dataclass(frozen=True)
class Effect:
    """One thing that a configuration asks for.

    Attributes:
        key: String. The key that asks for it, such as `"memory.limit"`.
        moment: String. `SCOPE`, `PREPARE` or `FIT`.
        text: String. What it does, in words.
        apply: Callable. For `SCOPE` it returns a context manager, for `FIT` a
            callback; for `PREPARE` it takes a model and returns one.
        why_not: String or `None`. Why it is left out here. Defaults to `None`.
        splits: Boolean. Whether it needs Keras' own `train_step`. Defaults to
            `False`.
    """

    key: str
    moment: str
    text: str
    apply: Callable[..., Any]
    why_not: str | None = None
    splits: bool = False

    def on(self, own_step: str | None) -> "Effect":
        """Returns the effect on a model with a step of its own, or without.

        Args:
            own_step: String or `None`. Name of the step that a model overrides.
        """
        if not (self.splits and own_step):
            return self
        why_not = f"the model has its own {own_step}"
        return dataclasses.replace(self, why_not=why_not)
