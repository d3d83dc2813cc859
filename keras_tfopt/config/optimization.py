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
from keras_tfopt.config.schema import MemorySection
from keras_tfopt.config.schema import MixedPrecision
from keras_tfopt.config.schema import TrainingConfiguration
from keras_tfopt.config.tuning import Tuning
from keras_tfopt.config.tuning import TuningLimits
from keras_tfopt.config.tuning import first_batch
from keras_tfopt.config.tuning_report import TuningReport
from keras_tfopt.config.validation import validate
from keras_tfopt.training.checks import check_triable
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
        self._made = effects_of(configuration)
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

    def tune(
        self,
        model: keras.Model,
        data: Any,
        *,
        budget_seconds: float = 300.0,
        max_loss_difference: float = 0.01,
    ) -> TuningReport:
        """Measures one optimization after another, and keeps what is better.

        Each is measured beside the best so far, by turns, on real steps whose
        traces are taken back: the model is afterwards as before. What is not
        faster, does not fit, or leads to other losses is left out. Dropout
        under XLA draws other numbers, which counts as other losses.

        Example:

        ```python
        import keras
        from keras_tfopt import Optimization

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        batch = keras.ops.ones((16, 4)), keras.ops.ones((16, 1))
        run = Optimization.from_dict({"tensorflow_optimization": {}})
        report = run.tune(model, batch, budget_seconds=20)
        better = run.with_tuning(report)
        print(better.to_yaml())
        ```

        Args:
            model: A compiled Keras model with Keras' own `train_step`.
            data: Batch `(x, y)` or `(x, y, sample_weight)`, or a dataset whose
                first batch is taken.
            budget_seconds: Float. After so long nothing new is tried. Defaults
                to 300.
            max_loss_difference: Float. Largest relative difference of the
                first losses to those of the baseline. Defaults to 0.01.

        Returns:
            `TuningReport`, with a table, JSON, and the sections of a
            configuration that say what was chosen.

        Raises:
            ValueError: If the model cannot be tried.
        """
        check_triable(model)
        memory = self.configuration.memory or MemorySection()
        limits = TuningLimits(
            budget_seconds, max_loss_difference, memory.max_gpu_utilization
        )
        precision = memory.mixed_precision or MixedPrecision()
        return Tuning(model, first_batch(data), precision, limits).run()

    def with_tuning(self, report: TuningReport) -> "Optimization":
        """Returns this optimization with what a tuning chose.

        Args:
            report: `TuningReport`.
        """
        data = yaml.safe_load(self.to_yaml())["tensorflow_optimization"]
        for key in ("mixed_precision", "checkpoint_gradients", "offload"):
            data.get("memory", {}).pop(key, None)
        for name, section in report.sections().items():
            data[name] = {**data.get(name, {}), **section}
        return self.from_dict({"tensorflow_optimization": data})

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
        """Returns what the configuration sets, preset included, as YAML."""
        data = self.configuration.model_dump(
            mode="json", exclude={"preset"}, exclude_unset=True
        )
        return yaml.safe_dump(
            {"tensorflow_optimization": data}, sort_keys=False
        )

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """Returns the JSON Schema of the file, for editors."""
        return Configuration.model_json_schema()

    def _all_effects(self) -> list[Effect]:
        return [effect.on(self._own_step) for effect in self._made]

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
