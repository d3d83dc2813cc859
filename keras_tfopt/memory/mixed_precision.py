"""Which half precision a device computes fastest, and where it is unsafe."""

from collections.abc import Iterator
import dataclasses

import keras
import tensorflow as tf

from keras_tfopt import _compat

_HALF = ("float16", "bfloat16")
# Ampere computes bfloat16 as fast as float16, and it needs no loss scale.
_BFLOAT16_CAPABILITY = (8, 0)
_FLOAT16_CAPABILITY = (7, 0)


@dataclasses.dataclass(frozen=True)
class PrecisionAdvice:
    """What data type to compute in.

    Attributes:
        compute_dtype: String, or `None` where half precision does not pay.
        reason: String. Why.
    """

    compute_dtype: str | None
    reason: str


def advise_compute_dtype() -> PrecisionAdvice:
    """Returns the half precision that all visible devices compute fastest.

    Devices are listed and not started.

    Example:

    ```python
    from keras_tfopt.memory.mixed_precision import advise_compute_dtype

    advice = advise_compute_dtype()
    print(advice.compute_dtype, advice.reason)
    ```

    Returns:
        `PrecisionAdvice`.

    Reference:

    - [Mixed precision](https://www.tensorflow.org/guide/mixed_precision)
    """
    if tf.config.list_physical_devices("TPU"):
        return PrecisionAdvice("bfloat16", "TPUs multiply in bfloat16")
    capabilities = [
        tf.config.experimental.get_device_details(gpu).get("compute_capability")
        for gpu in tf.config.list_physical_devices("GPU")
    ]
    return advise_for_capabilities(capabilities)


def advise_for_capabilities(
    capabilities: list[tuple[int, int] | None],
) -> PrecisionAdvice:
    """Returns the half precision for GPUs of these compute capabilities.

    Args:
        capabilities: List of pairs of integers, one for each GPU; `None` where
            the driver does not tell.
    """
    if not capabilities:
        return PrecisionAdvice(None, "there is no GPU or TPU")
    known = [capability for capability in capabilities if capability]
    if len(known) < len(capabilities):
        return PrecisionAdvice(None, "a GPU does not tell what it computes")
    oldest = min(known)
    name = ".".join(str(part) for part in oldest)
    if oldest >= _BFLOAT16_CAPABILITY:
        return PrecisionAdvice(
            "bfloat16", f"compute capability {name} needs no loss scale for it"
        )
    if oldest >= _FLOAT16_CAPABILITY:
        return PrecisionAdvice("float16", f"compute capability {name} has it")
    return PrecisionAdvice(
        None, f"compute capability {name} has no fast half precision"
    )


def half_precision_risks(model: keras.Model) -> tuple[str, ...]:
    """Returns where a model computes in half precision what needs float32.

    A loss of half-precision outputs loses small differences and overflows
    early, and so does a softmax. Give such a layer `dtype="float32"`.

    Example:

    ```python
    import keras
    from keras_tfopt.memory.mixed_precision import half_precision_risks

    dense = keras.layers.Dense
    model = keras.Sequential(
        [keras.Input((4,)), dense(3, "softmax", dtype="mixed_bfloat16")]
    )
    assert len(half_precision_risks(model)) == 2
    ```

    Args:
        model: A Keras model. Outputs are looked at where they are known, in
            functional and sequential models.

    Returns:
        Tuple of strings, each with the name of a layer.
    """
    outputs = tf.nest.flatten(getattr(model, "outputs", None) or [])
    ends = [
        f"the output of layer '{_compat.producer_of(output).name}' is "
        f"{output.dtype}; the loss needs float32"
        for output in outputs
        if output.dtype in _HALF
    ]
    return (*ends, *_softmax_risks(model))


def _softmax_risks(model: keras.Model) -> Iterator[str]:
    for layer in _compat.layers_of(model):
        is_softmax = isinstance(layer, keras.layers.Softmax) or (
            getattr(layer, "activation", None) is keras.activations.softmax
        )
        if is_softmax and layer.compute_dtype in _HALF:
            yield (
                f"layer '{layer.name}' computes softmax in "
                f"{layer.compute_dtype}; it needs float32"
            )
