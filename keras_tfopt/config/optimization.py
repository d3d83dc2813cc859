"""One configuration applied to an ordinary Keras training."""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import logging
import os
import pathlib
from typing import Any

import keras
import rich.console
import rich.table
import yaml

from keras_tfopt.config.building import effects_of
from keras_tfopt.config.document import Document
from keras_tfopt.config.document import parse_yaml
from keras_tfopt.config.effects import FIT
from keras_tfopt.config.effects import PREPARE
from keras_tfopt.config.effects import SCOPE
from keras_tfopt.config.effects import Effect
from keras_tfopt.config.schema import Configuration
from keras_tfopt.config.schema import TrainingConfiguration
from keras_tfopt.config.validation import validate
from keras_tfopt.training.checks import overridden_step

_logger = logging.getLogger("keras_tfopt")


class Optimization:
    """Applies one configuration to an ordinary Keras training.

    The configuration is checked as a whole before anything is touched. What
    must come before the model takes place in `scope`, what concerns the model
    in `prepare`, and the rest are callbacks of an ordinary `fit`. `explain`
    tells all of it beforehand.

    Example:

    ```python
    import keras
    from keras_tfopt import Optimization

    run = Optimization.from_dict(
        {
            "tensorflow_optimization": {
                "distribution": {"microbatch_size": 8},
                "memory": {"out_of_memory_recovery": True},
            }
        }
    )
    print(run.explain())
    with run.scope():
        model = run.prepare(
            keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        )
        model.compile("sgd", "mse")
    x, y = keras.ops.ones((16, 4)), keras.ops.ones((16, 1))
    model.fit(x, y, callbacks=run.callbacks(), verbose=0)
    assert model.plan.microbatch_size == 8
    ```

    Args:
        configuration: `TrainingConfiguration`, mostly from `from_yaml` or
            `from_dict`.
    """

    def __init__(self, configuration: TrainingConfiguration) -> None:
        self.configuration = configuration
        self._own_step: str | None = None

    @classmethod
    def from_yaml(cls, path: str | os.PathLike) -> "Optimization":
        """Reads a YAML file.

        `${NAME}` in it stands for an environment variable, `${NAME:-value}`
        for one that may be missing. Nothing in it runs code.

        Args:
            path: Path of the file.

        Returns:
            `Optimization`.

        Raises:
            ConfigurationError: Names line and key of all that is wrong.
        """
        text = pathlib.Path(path).read_text(encoding="utf-8")
        return cls._of(parse_yaml(text, os.fspath(path)))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Optimization":
        """Takes what a YAML file would hold.

        Args:
            data: Dict with the key `tensorflow_optimization`.

        Returns:
            `Optimization`.

        Raises:
            ConfigurationError: Names the key of all that is wrong.
        """
        return cls._of(Document(dict(data)))

    @classmethod
    def _of(cls, document: Document) -> "Optimization":
        checked = validate(Configuration, document)
        return cls(checked.tensorflow_optimization)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Applies what must come before the model: devices, precision, flags.

        What belongs to building, like the precision, ends with the scope; what
        TensorFlow takes only once, like memory limits, stays.

        Raises:
            RuntimeError: If TensorFlow has started and it is too late.
        """
        with contextlib.ExitStack() as stack:
            for effect in self._effects(SCOPE):
                stack.enter_context(effect.apply())
            yield

    def prepare(self, model: keras.Model) -> keras.Model:
        """Returns the model as the configuration wants it.

        Compile what is returned; it shares the weights of the model given.

        Args:
            model: A Keras model that is not compiled, or is compiled again.

        Returns:
            The same model, or an `AccumModel` around it.
        """
        self._own_step = overridden_step(model, "train")
        for effect in self._effects(PREPARE):
            model = effect.apply(model)
        return model

    def callbacks(self) -> list[keras.callbacks.Callback]:
        """Returns new callbacks for one `fit`."""
        return [effect.apply() for effect in self._effects(FIT)]

    def explain(self) -> str:
        """Returns what will be applied, when, and what not and why."""
        table = rich.table.Table()
        for heading in ("key", "when", "what"):
            table.add_column(heading)
        for effect in self._all_effects():
            left_out = effect.why_not and f"left out: {effect.why_not}"
            table.add_row(effect.key, effect.moment, left_out or effect.text)
        console = rich.console.Console(width=100, no_color=True)
        with console.capture() as capture:
            console.print(table)
        return capture.get()

    def to_yaml(self) -> str:
        """Returns the configuration with all its values, as YAML."""
        data = self.configuration.model_dump(
            mode="json", exclude={"preset"}, exclude_none=True
        )
        return yaml.safe_dump(
            {"tensorflow_optimization": data}, sort_keys=False
        )

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """Returns the JSON Schema of the file, for editors."""
        return Configuration.model_json_schema()

    def _all_effects(self) -> list[Effect]:
        return [
            effect.on(self._own_step)
            for effect in effects_of(self.configuration)
        ]

    def _effects(self, moment: str) -> list[Effect]:
        """Returns what applies at a moment, and logs what is left out."""
        effects = []
        for effect in self._all_effects():
            if effect.moment != moment:
                continue
            if effect.why_not:
                _logger.warning(
                    "%s is left out: %s.", effect.key, effect.why_not
                )
                continue
            effects.append(effect)
        return effects
