"""Every way to make a model trains like stock Keras, and is a Keras model."""

import keras
import numpy as np
import pytest

from keras_tfopt import AccumMixin
from keras_tfopt import AccumModel
from tests.equivalence import assert_equal_training
from tests.equivalence import assert_same
from tests.equivalence import run
from tests.models import X
from tests.models import Y
from tests.models import compiled
from tests.models import fit
from tests.models import network
from tests.models import stock_outcome

SPLIT = {"microbatch_size": 4}


def layers():
    return [
        keras.layers.Dense(5, activation="tanh"),
        keras.layers.Dense(1),
    ]


def tensors():
    """Returns inputs and outputs of a functional model."""
    inputs = keras.Input((4,))
    first, second = layers()
    return inputs, second(first(inputs))


def two_layer_class(base):
    """Returns a new subclass with its own `call`."""

    class Net(base):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.first, self.second = layers()

        def call(self, inputs):
            return self.second(self.first(inputs))

    return Net


def functional_class(base):
    """Returns a new subclass that hands inputs and outputs to its base."""

    class Net(base):
        def __init__(self, **kwargs):
            super().__init__(*tensors(), **kwargs)

    return Net


def inherited(base):
    """Returns a new class that adds nothing to its base."""

    class Derived(base):
        pass

    return Derived


def mixed_in(base):
    """Returns a new class that adds micro-batches to its base."""

    class Mixed(AccumMixin, base):
        pass

    return Mixed


def inputs_and_outputs_by_name(**settings):
    inputs, outputs = tensors()
    return AccumModel(inputs=inputs, outputs=outputs, **settings)


def from_sequential(built):
    def make(**settings):
        first = [keras.Input((4,))] if built else []
        model = keras.Sequential([*first, *layers()])
        return AccumModel.from_model(model, **settings)

    return make


def from_masked_call(**settings):
    """Wraps a model whose `call` takes neither `mask` nor `training`."""
    return AccumModel.from_model(two_layer_class(keras.Model)(), **settings)


WAYS = {
    "functional": lambda **settings: network(AccumModel, **settings),
    "functional_by_name": inputs_and_outputs_by_name,
    "subclass": lambda **settings: two_layer_class(AccumModel)(**settings),
    "functional_subclass": lambda **settings: functional_class(AccumModel)(
        **settings
    ),
    "two_levels": lambda **settings: inherited(two_layer_class(AccumModel))(
        **settings
    ),
    "functional_two_levels": lambda **settings: functional_class(
        inherited(AccumModel)
    )(**settings),
    "mixin": lambda **settings: mixed_in(two_layer_class(keras.Model))(
        **settings
    ),
    "functional_mixin": lambda **settings: mixed_in(
        functional_class(keras.Model)
    )(**settings),
    "from_sequential": from_sequential(True),
    "from_unbuilt_sequential": from_sequential(False),
    "from_functional": lambda **settings: AccumModel.from_model(
        network(keras.Model), **settings
    ),
    "from_subclass": from_masked_call,
}


@pytest.mark.parametrize("way", WAYS)
def test_equals_stock(way):
    def make_model(**settings):
        return compiled(WAYS[way](**settings))

    actual = run(make_model, fit, **SPLIT)
    assert isinstance(actual.model, AccumMixin)
    assert isinstance(actual.model, keras.Model)
    assert actual.model.plan.microbatch_size == 4
    assert_same(actual, stock_outcome())


@pytest.mark.parametrize("way", WAYS)
def test_settings_are_those_given(way):
    model = WAYS[way](accumulation_steps=3, gather_steps=2)
    assert model.plan.accumulation_steps == 3
    assert model.gather_steps == 2
    assert model.plan_events == ()
    with pytest.raises(ValueError, match="`accumulation_steps`"):
        WAYS[way](accumulation_steps=0)


def test_a_functional_model_is_one_and_has_its_conveniences():
    model = network(AccumModel, name="net")
    functional_type = type(network(keras.Model))
    assert isinstance(model, AccumModel)
    assert isinstance(model, functional_type)
    assert model.name == "net"
    assert model.input_shape == (None, 4)
    assert [layer.name for layer in model.layers][-1] == model.output_names[0]
    cut = keras.Model(model.input, model.layers[1].output)
    assert cut(X[:2]).shape == (2, 5)


def test_functional_models_leave_other_classes_alone():
    bases = AccumMixin.__bases__
    functional_type = type(network(keras.Model))
    network(AccumModel)
    functional_class(AccumModel)()
    mixed_in(functional_class(keras.Model))()
    for cls in (AccumModel, AccumMixin, keras.Model):
        assert not issubclass(cls, functional_type)
    assert AccumMixin.__bases__ == bases
    assert not any(issubclass(base, keras.Model) for base in bases)
    # So a class that is made later has its own constructor and `call`.
    model = two_layer_class(AccumModel)(microbatch_size=2)
    assert not isinstance(model, functional_type)
    assert model(X[:3]).shape == (3, 1)
    assert two_layer_class(keras.Model)()(X[:3]).shape == (3, 1)


def test_a_base_of_both_kinds_of_subclass():
    base = inherited(AccumModel)
    assert functional_class(base)(microbatch_size=2)(X[:3]).shape == (3, 1)
    assert functional_class(base)(microbatch_size=3)(X[:3]).shape == (3, 1)
    assert AccumModel not in base.__bases__
    assert issubclass(base, AccumModel)


@pytest.mark.parametrize("kind", ["sequential", "functional", "subclass"])
def test_from_model_shares_the_weights(kind):
    models = {
        "sequential": keras.Sequential([keras.Input((4,)), *layers()]),
        "functional": network(keras.Model),
        "subclass": two_layer_class(keras.Model)(),
    }
    existing = models[kind]
    existing(X[:1])
    model = AccumModel.from_model(existing, **SPLIT)
    assert model.name == existing.name
    assert AccumModel.from_model(existing, name="other").name == "other"
    compiled(model)
    before = existing(X)
    model.train_on_batch(X, Y)
    assert np.any(existing(X) != before)
    assert len(model.weights) == len(existing.weights) == 4
    for shared, weight in zip(model.weights, existing.weights, strict=True):
        assert shared is weight
    np.testing.assert_array_equal(model(X), existing(X))


@pytest.mark.parametrize("structure", ["dict", "list"])
def test_from_model_keeps_structures(structure):
    left, right = keras.Input((1,), name="a"), keras.Input((3,), name="b")
    inputs = {"a": left, "b": right} if structure == "dict" else [left, right]
    joined = keras.layers.Concatenate()([left, right])
    outputs = {"c": keras.layers.Dense(1, name="c")(joined)}
    model = AccumModel.from_model(keras.Model(inputs, outputs), **SPLIT)
    parts = [X[:6, :1], X[:6, 1:]]
    x = dict(zip("ab", parts, strict=True)) if structure == "dict" else parts
    assert model(x)["c"].shape == (6, 1)
    model.compile("sgd", {"c": "mse"})
    model.train_on_batch(x, {"c": Y[:6]})
    assert int(model.optimizer.iterations) == 1


def test_from_model_of_a_functional_model_with_its_own_call():
    class Doubled(keras.Model):
        def call(self, inputs, training=None, mask=None):
            return 2 * super().call(inputs, training=training, mask=mask)

    model = AccumModel.from_model(Doubled(*tensors()))
    half = keras.Model(model.model.input, model.model.output)
    np.testing.assert_array_equal(model(X), 2 * half(X))


def test_from_model_of_a_model_that_ignores_masks():
    class Summed(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, inputs):
            return keras.ops.sum(self.dense(inputs), axis=1)

        def compute_mask(self, inputs, previous_mask):
            return None

    masked = keras.layers.Masking()(np.zeros((2, 3, 4), "float32"))
    assert AccumModel.from_model(Summed())(masked).shape == (2, 1)


def overriding(name, base):
    return type("Custom", (base,), {name: lambda self, *args, **kwargs: None})


@pytest.mark.parametrize("kind", ["subclass", "functional", "sequential"])
@pytest.mark.parametrize(
    "name", ["train_step", "test_step", "compute_loss", "compute_metrics"]
)
def test_from_model_refuses_to_bypass_overrides(kind, name):
    if kind == "subclass":
        model = overriding(name, two_layer_class(keras.Model))()
    elif kind == "functional":
        model = overriding(name, functional_class(keras.Model))()
    else:
        model = overriding(name, keras.Sequential)(
            [keras.Input((4,)), *layers()]
        )
    with pytest.raises(ValueError, match="would bypass") as error:
        AccumModel.from_model(model, **SPLIT)
    message = str(error.value)
    assert f"its own {name}" in message
    assert "Expected: a model that only defines `call`" in message
    assert "class AccumCustom(AccumMixin, Custom)" in message


def test_nested_models_with_frozen_parts():
    def make_model(cls, **settings):
        inner = cls(*tensors())
        frozen = keras.Sequential([keras.Input((4,)), *layers()])
        frozen.trainable = False
        inner.layers[1].trainable = False
        inputs = keras.Input((4,))
        hidden = keras.layers.Concatenate()([inner(inputs), frozen(inputs)])
        outputs = keras.layers.Dense(1)(hidden)
        model = cls(inputs, outputs, **settings)
        return compiled(model, optimizer=keras.optimizers.AdamW(0.01))

    outcome = assert_equal_training(make_model, fit, **SPLIT)
    assert len(outcome.model.trainable_variables) == 4


@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")
def test_unused_variables_stay_untouched():
    def make_model(cls, **settings):
        class Net(cls):
            def __init__(self, **kwargs):
                super().__init__(**kwargs)
                self.first, self.second = layers()
                self.unused = self.add_weight(shape=(3,), initializer="ones")

            def call(self, inputs):
                return self.second(self.first(inputs))

        optimizer = keras.optimizers.SGD(
            0.05, momentum=0.9, weight_decay=0.1, global_clipnorm=1.0
        )
        return compiled(Net(**settings), optimizer=optimizer)

    assert_equal_training(make_model, fit, **SPLIT)
