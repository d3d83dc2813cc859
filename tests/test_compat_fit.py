"""Each private name that restoring a `fit` needs still means the same."""

import ast
import inspect
import pathlib
import random
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import _compat_fit

X = np.arange(12, dtype="float32").reshape(6, 2)
Y = np.ones((6, 1), "float32")


def _model(**kwargs):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(**{"optimizer": "sgd", "loss": "mse", **kwargs})
    return model


class InFit(keras.callbacks.Callback):
    """Calls a function with the epoch iterator when training begins."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def on_train_begin(self, logs=None):
        self.result = self.function(_compat_fit.fit_locals()["epoch_iterator"])


def in_fit(function, x=X, y=Y, model=None, **kwargs):
    """Returns what a function of the epoch iterator returns inside of `fit`."""
    callback = InFit(function)
    model = model or _model()
    kwargs = {"batch_size": 2} if y is not None else {"shuffle": False}
    model.fit(x, y, verbose=0, callbacks=[callback], **kwargs)
    return callback.result


def test_fit_locals_are_those_of_the_fit_around():
    found = {}

    def look(epoch_iterator):
        found.update(_compat_fit.fit_locals())

    callback = InFit(look)
    model = _model()
    history = model.fit(X, Y, verbose=0, callbacks=[callback])
    assert found["epoch_iterator"].num_batches == 1
    assert callback in found["callbacks"].callbacks
    assert history in found["callbacks"].callbacks
    with pytest.raises(RuntimeError, match="inside of `fit`.*Expected"):
        _compat_fit.fit_locals()


def test_is_running():
    class Own(keras.Sequential):
        def fit(self, *args, **kwargs):
            return super().fit(*args, **kwargs)

    found = []

    def look(epoch_iterator):
        found.append(epoch_iterator)
        # From inside of another `fit`, too.
        in_fit(lambda _: found.append(_is_running(epoch_iterator)))

    model = Own([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    in_fit(look, model=model)
    epoch_iterator, is_running = found
    assert is_running
    assert not _is_running(epoch_iterator)
    assert not in_fit(lambda _: _is_running(epoch_iterator))
    assert not in_fit(lambda _: _is_running(None))


def _is_running(epoch_iterator):
    return _compat_fit.is_running(epoch_iterator, inspect.currentframe())


def test_iterator_state_is_a_position():
    data = tf.data.Dataset.range(20).shuffle(9, seed=1)
    iterator = iter(data)
    for _ in range(5):
        next(iterator)
    state = _compat_fit.iterator_state(iterator)
    rest = [int(value) for value in iterator]
    again = iter(data)
    _compat_fit.set_iterator_state(again, state)
    assert [int(value) for value in again] == rest


def test_iterator_state_names_what_has_state_outside():
    data = tf.data.Dataset.range(3).map(lambda _: tf.random.uniform(()))
    with pytest.raises(tf.errors.FailedPreconditionError, match="Random"):
        _compat_fit.iterator_state(iter(data))
    data = tf.data.Dataset.from_generator(
        lambda: iter([1]), output_signature=tf.TensorSpec((), tf.int32)
    )
    with pytest.raises(tf.errors.FailedPreconditionError, match="PyFunc"):
        _compat_fit.iterator_state(iter(data))


def test_shuffles_in_a_state():
    data = tf.data.Dataset.range(40).shuffle(9, seed=1).batch(2).shuffle(3)
    iterator = iter(data)
    next(iterator)
    assert _compat_fit.shuffles_in(_compat_fit.iterator_state(iterator)) == 2
    list(iterator)
    # The last stage is there to the end.
    assert _compat_fit.shuffles_in(_compat_fit.iterator_state(iterator)) == 1


def test_dataset_of_is_what_fit_iterates_over():
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2)
    assert in_fit(_compat_fit.dataset_of, data, None).element_spec == (
        data.element_spec
    )


def test_dataset_stages():
    data = tf.data.Dataset.range(3).map(lambda x: x).cache().shuffle(3)
    data = data.batch(2).prefetch(1).with_options(tf.data.Options())
    assert _compat_fit.dataset_stages(data) == [
        "Prefetch",
        "Batch",
        "Shuffle",
        "Cache",
        "Map",
        "Range",
    ]
    zipped = tf.data.Dataset.zip((data, data.take(1)))
    assert "Take" in _compat_fit.dataset_stages(zipped)


def test_symbolic_build_makes_variables_and_draws_nothing():
    model = keras.Sequential([keras.layers.Dense(1), keras.layers.Dropout(0.5)])
    model.compile("sgd", "mse", metrics=["mae"])
    spec = (tf.TensorSpec((None, 2)), tf.TensorSpec((None, 1)))
    _compat_fit.symbolic_build(model, spec)
    assert model.built
    seeds = model.layers[1].seed_generator.state.numpy()
    assert len(model.metrics_variables) == 4
    _compat_fit.symbolic_build(model, spec)
    np.testing.assert_array_equal(
        model.layers[1].seed_generator.state.numpy(), seeds
    )


def test_set_initial_epoch_is_read_after_train_begin():
    model = _model()
    begin = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: _compat_fit.set_initial_epoch(model, 2)
    )
    history = model.fit(X, Y, epochs=4, verbose=0, callbacks=[begin])
    assert history.epoch == [2, 3]
    _compat_fit.set_initial_epoch(model, None)
    assert model.fit(X, Y, verbose=0).epoch == [0]


def test_global_seed():
    tf.random.set_seed(5)
    assert _compat_fit.global_seed() == 5


def test_operation_seed_state():
    tf.random.set_seed(5)
    before = _compat_fit.operation_seed_state()

    def draw():
        # An operation of its own, so that none is cached.
        data = tf.data.Dataset.range(10).shuffle(10)
        return [int(value) for value in data]

    first, second = draw(), draw()
    assert first != second
    _compat_fit.set_operation_seed_state(before)
    assert draw() == first


def test_global_seed_generator():
    keras.utils.clear_session()
    assert _compat_fit.global_seed_generator() is None
    keras.random.normal((1,))
    generator = _compat_fit.global_seed_generator()
    before = generator.state.numpy()
    keras.random.normal((1,))
    assert (generator.state.numpy() != before).any()
    assert _compat_fit.global_seed_generator(create=True) is generator


def test_global_generator():
    generator = tf.random.Generator.from_seed(1)
    tf.random.set_global_generator(generator)
    assert _compat_fit.global_generator() is generator
    assert _compat_fit.global_generator(create=True) is generator


def test_array_data():
    assert in_fit(_compat_fit.is_array_data)
    arrays, rows, batch_size, shuffle = in_fit(_compat_fit.array_data)
    assert arrays[0] is X and arrays[1] is Y
    assert (rows, batch_size, shuffle) == (6, 2, True)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2)
    assert not in_fit(_compat_fit.is_array_data, data, None)


class Sequence(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return X[:2], Y[:2]


def test_shuffles_arrays():
    assert in_fit(_compat_fit.shuffles_arrays)
    data = tf.data.Dataset.from_tensors((X, Y))
    assert not in_fit(_compat_fit.shuffles_arrays, data, None)


def test_own_sharding():
    assert in_fit(_compat_fit.own_sharding) is None
    data = tf.data.Dataset.from_tensors((X, Y))
    assert in_fit(_compat_fit.own_sharding, data, None) is None
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    data = data.with_options(options)
    assert "OFF" in in_fit(_compat_fit.own_sharding, data, None)


def test_py_dataset_and_its_shuffling_by_python():
    data = Sequence()
    assert in_fit(_compat_fit.py_dataset) is None
    assert in_fit(_compat_fit.py_dataset, data, None) is data
    before = random.getstate()
    _model().fit(data, shuffle=True, verbose=0)
    assert random.getstate() != before


def test_iteration_can_be_replaced():
    calls = []

    def replace(epoch_iterator):
        def wrap(name):
            def wrapper(stock):
                def replacement():
                    calls.append(name)
                    return stock()

                return replacement

            return wrapper

        for name in ("enumerate", "iterate"):
            _compat_fit.replace_iteration(epoch_iterator, name, wrap(name))

    in_fit(replace)
    # Keras makes one iterator more at the end of data of a known length.
    assert calls == ["enumerate", "iterate", "iterate"]


def test_progress():
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2)
    data = data.filter(lambda x, y: True)
    progress = []
    model = _model()

    class Look(InFit):
        def on_epoch_end(self, epoch, logs=None):
            progress.append(_compat_fit.progress_of(self.result))

    with pytest.warns(UserWarning, match="ran out of data"):
        look = Look(lambda epoch_iterator: epoch_iterator)
        model.fit(data, shuffle=False, verbose=0, callbacks=[look])
    # The step that finds the end counts.
    assert progress == [(4, 4)]
    _compat_fit.set_progress(look.result, 7, 5)
    assert look.result.num_batches == 7
    assert _compat_fit.progress_of(look.result) == (7, 5)


def test_progress_bar(capsys):
    assert _compat_fit.progress_bar() is None
    assert _compat_fit.width_of_bar(None) == 0
    widths = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            bar = _compat_fit.progress_bar()
            widths.append(_compat_fit.width_of_bar(bar))

    _model().fit(X, Y, verbose=1, callbacks=[Look()])
    shown = re.sub("\x1b\\[[0-9]*m|\b", "", capsys.readouterr().out)
    assert widths == [len(shown.split("\r")[1].rstrip())]
    _model().fit(X, Y, verbose=0, callbacks=[Look()])
    assert widths[1] == 0


def test_every_function_is_tested_here():
    names = [
        name
        for name, value in vars(_compat_fit).items()
        if inspect.isfunction(value)
        and value.__module__ == _compat_fit.__name__
        and not name.startswith("_")
    ]
    used = {
        node.attr
        for node in ast.walk(ast.parse(pathlib.Path(__file__).read_text()))
        if isinstance(node, ast.Attribute)
    }
    assert set(names) <= used
