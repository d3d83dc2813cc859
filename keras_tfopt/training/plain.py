"""The plain Keras model inside of a model that accumulates."""

from typing import Any

import keras

from keras_tfopt import _compat


def plain_model(model: keras.Model, inputs: Any = None) -> keras.Model:
    """Makes a stock Keras model that shares the weights of a model.

    Args:
        model: A functional model, or a model whose `call` consists of layers
            and `keras.ops`.
        inputs: `keras.Input`, or nest of them, for a model that is not
            functional. Defaults to float inputs of the shape that the model
            was built for.

    Returns:
        An uncompiled `keras.Model` without any class of ours.

    Raises:
        ValueError: If there is no such model.
    """
    if isinstance(model, _compat.Functional):
        return keras.Model(model.input, model.output, name=model.name)
    if inputs is None:
        inputs = _symbolic_inputs(model)
    try:
        outputs = model.call(inputs)
    except Exception as error:
        raise ValueError(
            "A plain model is made by calling symbolic inputs. Received: "
            f"{type(model).__name__}.call, which raised "
            f"{type(error).__name__}: {error}. Expected: a `call` of layers "
            "and `keras.ops` only. Define the network in a plain "
            "`keras.Model` and wrap it with `AccumModel.from_model`."
        ) from error
    return keras.Model(inputs, outputs, name=model.name)


def _symbolic_inputs(model: keras.Model) -> Any:
    shape = (model.get_build_config() or {}).get("input_shape")
    if shape is None:
        raise ValueError(
            "A plain model needs to know its inputs. Received: inputs=None "
            f"for model '{model.name}', which is not built for one argument. "
            "Expected: `inputs=keras.Input(...)`, or a model that was called "
            "on a batch."
        )
    return keras.tree.map_shape_structure(
        lambda part: keras.Input(batch_shape=part), shape
    )
