"""Random batches, losses, weights and masks, split anyhow, against Keras."""

import dataclasses
import os

import hypothesis
from hypothesis import strategies
import keras
import numpy as np
import pytest

from keras_tfopt import AccumModel

# Each example traces two models; the environment may ask for more.
EXAMPLES = int(os.environ.get("KERAS_TFOPT_FUZZ_EXAMPLES", "8"))
LENGTH, TOKENS = 5, 11


@dataclasses.dataclass(frozen=True)
class Case:
    """One training: its data, model and split."""

    rows: int
    batch_size: int
    microbatch_size: int
    structure: str
    heads: tuple[str, ...]
    reduction: str
    weights: str
    is_masked: bool
    is_regularized: bool
    optimizer: str
    steps_per_execution: int
    seed: int


CASES = strategies.builds(
    Case,
    rows=strategies.integers(1, 17),
    batch_size=strategies.integers(1, 9),
    microbatch_size=strategies.integers(1, 10),
    structure=strategies.sampled_from(["single", "dict", "list"]),
    heads=strategies.sampled_from(
        [("value",), ("class",), ("tokens",), ("value", "tokens")]
    ),
    reduction=strategies.sampled_from(
        ["sum_over_batch_size", "sum", "mean_with_sample_weight"]
    ),
    weights=strategies.sampled_from(["none", "rows", "some zero", "all zero"]),
    is_masked=strategies.booleans(),
    is_regularized=strategies.booleans(),
    optimizer=strategies.sampled_from(["sgd", "clipped", "decayed", "ema"]),
    steps_per_execution=strategies.sampled_from([1, 1, 2]),
    seed=strategies.integers(0, 99),
)


def make_data(case):
    """Returns inputs, targets and weights of a case."""
    random = np.random.default_rng(case.seed)
    tokens = random.integers(1, TOKENS, size=(case.rows, LENGTH))
    if case.is_masked:
        tokens[random.random(tokens.shape) < 0.4] = 0
    values = random.normal(size=(case.rows, 3)).astype("float32")
    x = {
        "single": tokens,
        "dict": {"tokens": tokens, "values": values},
        "list": [tokens, values],
    }[case.structure]
    targets = {
        "value": random.normal(size=(case.rows, 1)).astype("float32"),
        "class": random.integers(0, 4, size=(case.rows,)),
        "tokens": random.normal(size=(case.rows, LENGTH, 1)).astype("float32"),
    }
    y = {name: targets[name] for name in case.heads}
    if case.weights == "none":
        return x, y, None
    weights = {}
    for name in case.heads:
        shape = (case.rows, LENGTH) if name == "tokens" else (case.rows,)
        weights[name] = random.uniform(0.1, 2, size=shape).astype("float32")
        if case.weights == "some zero":
            weights[name][random.random(shape) < 0.5] = 0
        if case.weights == "all zero":
            weights[name][:] = 0
    return x, y, weights


def make_model(case, cls, **settings):
    """Compiles the model of a case."""
    keras.utils.set_random_seed(case.seed)
    layers = keras.layers
    tokens = keras.Input((LENGTH,), dtype="int32", name="tokens")
    values = keras.Input((3,), name="values")
    regularizer = "l2" if case.is_regularized else None
    embedded = layers.Embedding(TOKENS, 4, mask_zero=case.is_masked)(tokens)
    sequence = layers.Dense(
        4,
        "tanh",
        kernel_regularizer=regularizer,
        activity_regularizer="l1" if case.is_regularized else None,
    )(embedded)
    pooled = layers.GlobalAveragePooling1D()(sequence)
    inputs = tokens
    if case.structure != "single":
        pooled = layers.Concatenate()([pooled, layers.Dense(2)(values)])
        inputs = {"tokens": tokens, "values": values}
        if case.structure == "list":
            inputs = [tokens, values]
    made = {
        "value": layers.Dense(1, name="value"),
        "class": layers.Dense(4, name="class"),
        "tokens": layers.Dense(1, name="tokens_out"),
    }
    outputs = {
        name: made[name](sequence if name == "tokens" else pooled)
        for name in case.heads
    }
    model = cls(inputs, outputs, **settings)
    losses = {
        "value": keras.losses.MeanSquaredError(reduction=case.reduction),
        "class": keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, ignore_class=1, reduction=case.reduction
        ),
        "tokens": keras.losses.Huber(reduction=case.reduction),
    }
    model.compile(
        make_optimizer(case),
        {name: losses[name] for name in case.heads},
        loss_weights={
            name: place + 0.5 for place, name in enumerate(case.heads)
        },
        weighted_metrics={
            name: ["mse"] for name in case.heads if name != "class"
        },
        steps_per_execution=case.steps_per_execution,
    )
    return model


def make_optimizer(case):
    optimizers = keras.optimizers
    return {
        "sgd": lambda: optimizers.SGD(0.05, momentum=0.9),
        "clipped": lambda: optimizers.SGD(0.05, global_clipnorm=0.5),
        "decayed": lambda: optimizers.SGD(0.05, weight_decay=0.01),
        "ema": lambda: optimizers.SGD(0.05, use_ema=True),
    }[case.optimizer]()


def train(model, case):
    """Trains two epochs and returns what training left."""
    x, y, weights = make_data(case)
    history = model.fit(
        x,
        y,
        sample_weight=weights,
        batch_size=case.batch_size,
        epochs=2,
        shuffle=False,
        verbose=0,
        validation_data=(x, y, weights) if weights is not None else (x, y),
    )
    variables = [*model.weights, *model.optimizer.variables]
    return history.history, [np.array(variable) for variable in variables]


@pytest.mark.slow
@hypothesis.settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="KERAS_TFOPT_FUZZ_EXAMPLES" not in os.environ,
    database=None,
    # Making a failure smaller would train for minutes.
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(CASES)
def test_split_training_equals_keras(case):
    keras.utils.clear_session()
    expected, theirs = train(make_model(case, keras.Model), case)

    history, ours = train(
        make_model(case, AccumModel, microbatch_size=case.microbatch_size),
        case,
    )

    assert history.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(
            history[name], values, rtol=1e-5, atol=1e-5, err_msg=name
        )
    for own, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-5)
