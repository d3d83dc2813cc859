import keras
import pytest

from keras_tfopt.memory import mixed_precision


@pytest.mark.parametrize(
    ("capabilities", "compute_dtype", "reason"),
    [
        ([], None, "no GPU or TPU"),
        ([(9, 0), (8, 6)], "bfloat16", "8.6"),
        ([(8, 0), (7, 5)], "float16", "7.5"),
        ([(6, 1)], None, "6.1"),
        ([(9, 0), None], None, "does not tell"),
    ],
)
def test_advice(capabilities, compute_dtype, reason):
    advice = mixed_precision.advise_for_capabilities(capabilities)

    assert advice.compute_dtype == compute_dtype
    assert reason in advice.reason


def model_ending_in(*layers):
    return keras.Sequential([keras.Input((4,)), *layers])


def test_softmax_and_output_in_half_precision_are_named():
    model = model_ending_in(
        keras.layers.Dense(4, "softmax", dtype="mixed_bfloat16", name="attend"),
        keras.layers.Dense(2, dtype="mixed_float16", name="logits"),
    )

    output, softmax = mixed_precision.half_precision_risks(model)

    assert "'logits' is float16" in output
    assert "'attend' computes softmax in bfloat16" in softmax


def test_nested_layers_are_looked_at():
    inner = model_ending_in(keras.layers.Softmax(dtype="float16", name="deep"))
    model = model_ending_in(inner, keras.layers.Dense(1, dtype="float32"))

    (risk,) = mixed_precision.half_precision_risks(model)

    assert "'deep' computes softmax" in risk


def test_float32_at_the_end_is_safe():
    model = model_ending_in(
        keras.layers.Dense(4, dtype="mixed_float16"),
        keras.layers.Dense(2, "softmax", dtype="float32"),
    )
    assert mixed_precision.half_precision_risks(model) == ()
