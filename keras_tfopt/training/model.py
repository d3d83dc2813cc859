"""A Keras model that accumulates gradients exactly."""

from typing import Any

import keras

from keras_tfopt import _compat
from keras_tfopt.training.mixin import AccumMixin


class AccumModel(AccumMixin, keras.Model):
    """A `keras.Model` that trains batches which do not fit into memory.

    Each batch that `fit` delivers is split into micro-batches, which pass
    through the model one after the other; the optimizer is applied once, with
    the gradient of the whole batch. Weights, optimizer slots, losses and
    metrics are those of the unsplit batch, whatever the loss reduction, masks
    and sample weights, while the activations of only one micro-batch are in
    memory.

    Two layers behave differently by nature. BatchNormalization normalizes each
    micro-batch with its own moments; its moving statistics are updated once per
    step, with the moments of the whole batch. Dropout draws a fresh mask for
    each micro-batch, reproducible from its seed.

    Without splitting the step is that of Keras, but a step that fails changes
    nothing.

    Example:

    ```python
    import keras
    from keras_tfopt import AccumModel

    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(16, activation="relu")(inputs)
    outputs = keras.layers.Dense(1)(hidden)
    model = AccumModel(inputs, outputs, accumulation_steps=4)
    model.compile("adam", "mse")
    x, y = keras.random.normal((64, 8)), keras.random.normal((64, 1))
    model.fit(x, y, batch_size=32, verbose=0)
    assert int(model.optimizer.iterations) == 2
    ```

    Args:
        inputs: As for `keras.Model`; none for a subclass with its own `call`.
        outputs: As for `keras.Model`.
        accumulation_steps: Integer or `None`. Number of micro-batches that
            each batch is split into. Defaults to `None`.
        microbatch_size: Integer or `None`. Rows of a micro-batch. Excludes
            `accumulation_steps`. Defaults to `None`.
        gather_steps: Integer or `None`. Number of delivered batches that make
            one update, for loaders that deliver micro-batches. Defaults to
            `None`.
        remat: What is computed again in the backward pass instead of kept, as
            for `ExecutionPlan`. Defaults to `None`, which means nothing.
        offload: What is in the memory of the host in place of the device's, as
            for `ExecutionPlan`. Defaults to `None`, which means nothing.
        **kwargs: As for `keras.Model`.

    Raises:
        ValueError: If a number is not a positive integer, if both ways of
            splitting are given, or if `remat` or `offload` is something else.

    Reference:
        Huang et al., "GPipe: Efficient Training of Giant Neural Networks using
        Pipeline Parallelism", 2019, https://arxiv.org/abs/1811.06965
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> "AccumModel":
        """Makes a functional model of inputs and outputs, as Keras does."""
        if cls is AccumModel and _is_functional(args, kwargs):
            cls = FunctionalAccumModel
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Initializes the model; see the class."""
        is_plain = not isinstance(self, _compat.Functional)
        if is_plain and _is_functional(args, kwargs):
            _make_functional(type(self))
        super().__init__(*args, **kwargs)

    @classmethod
    def from_model(
        cls, model: keras.Model, name: str | None = None, **settings: Any
    ) -> "AccumModel":
        """Makes an `AccumModel` of an existing model, sharing its weights.

        Example:

        ```python
        import keras
        from keras_tfopt import AccumModel

        existing = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model = AccumModel.from_model(existing, microbatch_size=32)
        assert model.weights[0] is existing.weights[0]
        ```

        Args:
            model: A Sequential, functional or subclassed model.
            name: String or `None`. Defaults to the name of `model`.
            **settings: `accumulation_steps`, `microbatch_size`,
                `gather_steps`, `remat` or `offload`.

        Returns:
            An uncompiled `AccumModel`.

        Raises:
            ValueError: If `model` overrides how Keras trains it, which a
                wrapper would bypass.
        """
        name = name or model.name
        graph = _graph_of(model)
        if graph is None:
            return WrappedAccumModel(model, name=name, **settings)
        return AccumModel(*graph, name=name, **settings)


@keras.saving.register_keras_serializable(package="keras_tfopt")
class FunctionalAccumModel(AccumModel, _compat.Functional):
    """What `AccumModel(inputs, outputs)` makes."""


@keras.saving.register_keras_serializable(package="keras_tfopt")
class WrappedAccumModel(AccumModel):
    """What `AccumModel.from_model` makes of a subclassed model.

    Args:
        model: The model that does the work.
        **kwargs: As for `AccumModel`.
    """

    def __init__(self, model: keras.Model, **kwargs: Any) -> None:
        """Initializes the model; see the class."""
        overridden = _overrides(model)
        if overridden:
            name = type(model).__name__
            raise ValueError(
                f"A wrapper would bypass what {name} overrides. Received: a "
                f"model with its own {', '.join(overridden)}. Expected: a "
                "model that only defines `call`. Inherit instead: "
                f"`class Accum{name}(AccumMixin, {name})`."
            )
        super().__init__(**kwargs)
        self.model = model

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Calls the wrapped model."""
        return self.model(inputs, training=training)

    def compute_mask(self, inputs: Any, previous_mask: Any) -> None:
        """Leaves masks to the wrapped model, which sees those on its inputs."""

    def to_keras_model(self, inputs: Any = None) -> keras.Model:
        """Returns the wrapped model."""
        del inputs
        return self.model

    def get_config(self) -> dict[str, Any]:
        """Returns the config with that of the wrapped model."""
        model = keras.saving.serialize_keras_object(self.model)
        return {**super().get_config(), "model": model}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> "WrappedAccumModel":
        """Makes a model from its config."""
        config = dict(config)
        config["model"] = keras.saving.deserialize_keras_object(
            config["model"], custom_objects=custom_objects
        )
        return super().from_config(config, custom_objects=custom_objects)


def _is_functional(args: tuple, kwargs: dict) -> bool:
    return _compat.functional_init_arguments(args, kwargs)


def _make_functional(cls: type) -> None:
    """Puts the functional class under a subclass that turned out functional."""
    cls.__bases__ = tuple(
        FunctionalAccumModel if base is AccumModel else base
        for base in cls.__bases__
    )
    for base in cls.__bases__:
        if issubclass(base, AccumModel) and base is not FunctionalAccumModel:
            _make_functional(base)


def _graph_of(model: keras.Model) -> tuple[Any, Any] | None:
    """Returns the inputs and outputs of a model that is nothing besides."""
    if _overrides(model):
        return None
    if isinstance(model, keras.Sequential):
        # Layers that Keras cannot trace leave even a built one without inputs.
        if type(model).call is keras.Sequential.call and hasattr(
            model, "inputs"
        ):
            return model.inputs[0], _unpack_single(model.outputs)
    elif isinstance(model, _compat.Functional):
        if type(model).call is _compat.Functional.call:
            return model.input, model.output
    return None


def _unpack_single(tensors: list) -> Any:
    return tensors[0] if len(tensors) == 1 else tensors


def _overrides(model: keras.Model) -> list[str]:
    stock = (
        keras.Sequential
        if isinstance(model, keras.Sequential)
        else (keras.Model)
    )
    return [
        name
        for name in (
            "train_step",
            "test_step",
            "predict_step",
            "compute_loss",
            "compute_metrics",
        )
        if getattr(type(model), name) is not getattr(stock, name)
    ]
