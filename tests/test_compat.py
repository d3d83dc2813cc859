"""Each private name that the package needs still means what we take it for."""

import ast
import inspect
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import _compat
from tests import subprocesses


def _functional(layers=None):
    inputs = keras.Input((3,))
    outputs = inputs
    for layer in layers or [keras.layers.Dense(1, name="dense")]:
        outputs = layer(outputs)
    return keras.Model(inputs, outputs)


def _compiled(model=None, **kwargs):
    model = model or _functional()
    model.compile(**{"optimizer": "sgd", "loss": "mse", **kwargs})
    model.train_on_batch(np.ones((2, 3)), np.zeros((2, 1)))
    return model


def _two_outputs():
    inputs = keras.Input((3,))
    outputs = {
        name: keras.layers.Dense(1, name=name)(inputs) for name in ("a", "b")
    }
    model = keras.Model(inputs, outputs)
    weights = {"a": 2.0, "b": 3.0}
    model.compile("sgd", {"a": "mse", "b": "mae"}, loss_weights=weights)
    zeros = np.zeros((2, 1))
    model.train_on_batch(np.ones((2, 3)), {"a": zeros, "b": zeros})
    return model


def test_functional_is_what_keras_makes_of_inputs_and_outputs():
    model = _functional()
    assert type(model) is _compat.Functional
    assert issubclass(_compat.Functional, keras.Model)


def test_functional_init_arguments():
    inputs = keras.Input((3,))
    is_functional = _compat.functional_init_arguments
    assert is_functional((inputs, inputs), {})
    assert is_functional((), {"inputs": inputs, "outputs": inputs})
    assert not is_functional((), {"name": "net"})


class WithTraining(keras.Model):
    def call(self, inputs, training=None):
        return inputs + (1.0 if training else 0.0)


class WithoutTraining(keras.Model):
    def call(self, inputs):
        return inputs


def test_forward_passes_training_where_it_is_accepted():
    ones = tf.ones((1, 1))
    assert float(_compat.forward(WithTraining(), ones)[0, 0]) == 2
    assert float(_compat.forward(WithTraining(), ones, False)[0, 0]) == 1
    assert float(_compat.forward(WithoutTraining(), ones)[0, 0]) == 1


class OldLoss(WithoutTraining):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return tf.constant(7.0)


class NewLoss(WithoutTraining):
    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        return tf.constant(8.0 if training else 0.0)


@pytest.mark.parametrize("cls, expected", [(OldLoss, 7), (NewLoss, 8)])
def test_compute_loss_bridges_signatures(cls, expected):
    model = cls()
    model.compile("sgd", "mse")
    ones = tf.ones((1, 1))
    assert (
        float(_compat.compute_loss(model, ones, ones, ones, None)) == expected
    )


def test_update_loss_tracker_weights_by_rows():
    model = _compiled()
    model.reset_metrics()
    for rows, loss in ((1, 5.0), (3, 1.0)):
        x = {"absent": None, "given": tf.ones((rows, 3))}
        _compat.update_loss_tracker(model, tf.constant(loss), x)
    assert float(model.get_metrics_result()["loss"]) == 2


def test_loss_trackers_are_those_of_the_losses():
    names = [metric.name for metric in _compat.loss_trackers(_compiled())]
    assert names[0] == "loss"
    names = [metric.name for metric in _compat.loss_trackers(_two_outputs())]
    assert names == ["loss", "a_loss", "b_loss"]


def test_compilation_changes_with_compile():
    model = _compiled()
    before = _compat.compilation_of(model)
    assert _compat.compilation_of(model) is before
    model.compile("sgd", "mse")
    assert _compat.compilation_of(model) is not before


def test_has_seed():
    assert _compat.has_seed(keras.layers.Dropout(0.5))
    assert not _compat.has_seed(keras.layers.Dense(1))


def test_compile_loss_is_what_compute_loss_calls():
    model = _compiled()
    compiled = _compat.compile_loss(model)
    assert isinstance(compiled, keras.losses.Loss)
    tracked = len(model.variables)
    _compat.set_compile_loss(model, lambda *args, **kwargs: tf.constant(9.0))
    ones = tf.ones((1, 1))
    assert float(model.compute_loss(ones, ones, ones)) == 9
    _compat.set_compile_loss(model, compiled)
    assert float(model.compute_loss(ones, ones, ones)) == 0
    assert len(model.variables) == tracked


def test_clone_loss_shares_but_is_another():
    loss = keras.losses.MeanSquaredError(reduction="sum")
    clone = _compat.clone_loss(loss)
    assert type(clone) is type(loss)
    clone.reduction = "none"
    assert loss.reduction == "sum"
    assert clone.fn is loss.fn


def test_flat_losses_are_in_the_order_of_their_calls():
    entries = _compat.flat_losses(_compat.compile_loss(_two_outputs()))
    assert [entry.name for entry in entries] == ["a", "b"]
    assert [entry.loss_weights for entry in entries] == [2.0, 3.0]
    assert all(callable(entry.loss) for entry in entries)


def test_replace_flat_losses_changes_terms_and_trackers():
    original = _compat.compile_loss(_two_outputs())
    clone = _compat.clone_loss(original)
    calls = []

    def term(y_true, y_pred, sample_weight):
        calls.append((y_true, y_pred, sample_weight))
        return tf.constant(1.0)

    _compat.replace_flat_losses(clone, [term, term], [None, None])
    values = {"a": tf.ones((2, 1)), "b": tf.zeros((2, 1))}
    before = [float(metric.result()) for metric in original.metrics]
    assert float(clone.call(values, values, None)) == 2 + 3
    assert [float(pred[0, 0]) for _, pred, _ in calls] == [1, 0]
    assert [float(metric.result()) for metric in original.metrics] == before
    assert float(original.call(values, values, None)) == 0


def test_mask_rides_on_tensors():
    layer = keras.layers.Masking()
    outputs = layer(tf.constant([[[0.0], [1.0]]]))
    np.testing.assert_array_equal(_compat.get_mask(outputs), [[False, True]])
    assert _compat.get_mask(tf.ones((1,))) is None


def test_losses_obey_the_mask_that_is_set():
    values = tf.constant([1.0, 5.0])
    _compat.set_mask(values, None)
    assert _compat.get_mask(values) is None
    _compat.set_mask(values, tf.constant([True, False]))
    loss = keras.losses.Loss()
    loss.call = lambda y_true, y_pred: y_pred
    assert float(loss(tf.zeros((2,)), values)) == 1


def test_stored_value_is_past_every_scope():
    variable = keras.Variable(2.0)
    with keras.StatelessScope([(variable, tf.constant(3.0))]):
        assert float(variable.value) == 3
        assert float(_compat.stored_value(variable)) == 2
        new = keras.Variable(keras.initializers.Constant(4.0), shape=())
        # It has no value yet, only an initializer.
        assert float(_compat.stored_value(new)) == 4


def test_layers_of_are_all_layers_and_the_model():
    inner = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model = _functional([inner])
    layers = list(_compat.layers_of(model))
    assert any(layer is model for layer in layers)
    assert any(layer is inner.layers[0] for layer in layers)


def test_producer_of_is_the_layer():
    layer = keras.layers.Dense(2)
    model = _functional([keras.layers.Dense(3), layer])
    assert _compat.producer_of(model.outputs[0]) is layer


def test_own_variables_are_those_of_no_sublayer():
    inner = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    dropout = keras.layers.Dropout(0.5)
    norm = keras.layers.BatchNormalization()
    model = _functional([inner, dropout, norm])
    assert _compat.own_variables(inner) == []
    assert len(_compat.own_variables(norm)) == 4
    (seed,) = _compat.own_variables(dropout)
    assert seed.name == "seed_generator_state"
    owned = [
        id(variable)
        for layer in _compat.layers_of(model)
        for variable in _compat.own_variables(layer)
    ]
    assert sorted(owned) == sorted({id(v) for v in model.variables})


class AddsLoss(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(tf.reduce_mean(inputs))
        return inputs


def test_count_added_losses():
    layer = AddsLoss(activity_regularizer="l2")
    silent = keras.layers.Dense(1, kernel_regularizer="l2")
    with keras.StatelessScope(collect_losses=True):
        silent(layer(tf.ones((2, 3))))
    assert _compat.count_added_losses(layer) == 2
    assert _compat.count_added_losses(silent) == 0


def test_averages_activity_losses():
    layer = keras.layers.Activation("linear", activity_regularizer="l2")
    layer(tf.ones((4, 1)))
    ratio = 4 if _compat.averages_activity_losses() else 1
    expected = float(keras.regularizers.L2()(tf.ones((4, 1)))) / ratio
    np.testing.assert_allclose(float(layer.losses[0]), expected, rtol=1e-6)


def test_metric_function_is_what_is_averaged():
    metric = keras.metrics.MeanAbsoluteError()
    function = _compat.metric_function(metric)
    assert float(function(tf.ones((1, 1)), tf.zeros((1, 1)))[0]) == 1
    _compat.set_metric_function(metric, lambda *args: tf.constant(6.0))
    metric.update_state(tf.ones((1, 1)), tf.zeros((1, 1)))
    assert float(metric.result()) == 6
    assert _compat.metric_function(keras.metrics.AUC()) is None


def test_flat_metrics_are_those_of_compile():
    metrics = [keras.metrics.MeanAbsoluteError(), keras.metrics.AUC()]
    model = _compiled(metrics=metrics[:1], weighted_metrics=metrics[1:])
    flat = _compat.flat_metrics(model)
    assert [type(metric) for metric in flat] == [type(m) for m in metrics]
    assert _compat.flat_metrics(_compiled()) == []


class OwnMoments(keras.layers.BatchNormalization):
    def _moments(self, inputs, mask):
        return super()._moments(inputs, mask)


def test_batch_moments_are_what_a_layer_normalizes_with():
    layer = keras.layers.BatchNormalization(momentum=0.0)
    x = tf.constant([[0.0], [2.0]])
    layer.build(x.shape)
    assert _compat.has_stock_moments(layer)
    assert not _compat.has_stock_moments(OwnMoments())
    mean, variance = _compat.batch_moments(layer)(x, None)
    assert (float(mean[0]), float(variance[0])) == (1, 1)
    _compat.set_batch_moments(
        layer, lambda inputs, mask: (tf.constant([5.0]), tf.constant([4.0]))
    )
    layer(x, training=True)
    assert float(layer.moving_mean[0]) == 5
    _compat.set_batch_moments(layer, None)
    layer(x, training=True)
    assert float(layer.moving_mean[0]) == 1


def _last_operation(function, kind):
    graph = tf.function(function).get_concrete_function().graph
    return next(op for op in graph.get_operations() if op.type == kind)


def test_written_resources():
    variable = tf.Variable(0.0)
    write = _last_operation(lambda: variable.assign(1.0), "AssignVariableOp")
    (handle,) = _compat.written_resources(write)
    assert handle.dtype == tf.resource
    read = _last_operation(lambda: variable + 1.0, "ReadVariableOp")
    assert _compat.written_resources(read) == []


def test_called_graphs():
    variable = tf.Variable(0.0)

    def cond():
        return tf.cond(variable > 0, lambda: variable.assign(1.0), lambda: 1.0)

    conditional = _last_operation(cond, "If")
    graphs = _compat.called_graphs(conditional)
    written = [
        any(op.type == "AssignVariableOp" for op in graph.get_operations())
        for graph in graphs
    ]
    assert sorted(written) == [False, True]
    # The arguments of the branches are the last inputs of the operation.
    for graph in graphs:
        assert len(graph.inputs) == len(conditional.inputs) - 1
    read = _last_operation(lambda: variable + 1.0, "ReadVariableOp")
    assert _compat.called_graphs(read) == []


def test_stock_function_runs_batches_and_leaves_the_model_alone():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=2)
    run = _compat.stock_function(model, model.train_step)
    assert model.train_function is None
    batch = (tf.ones((3, 2)), tf.ones((3, 1)))
    assert "loss" in run(iter([batch, batch]))
    assert int(model.optimizer.iterations) == 2


def test_strategy_of_a_model():
    assert _compat.strategy_of(keras.Sequential()) is None
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        assert _compat.strategy_of(keras.Sequential()) is strategy


def test_device_memory_limit():
    limit = _compat.device_memory_limit("CPU:0")
    assert limit > 0
    for name in ("/device:CPU:0", "/job:localhost/task:0/device:CPU:0"):
        assert _compat.device_memory_limit(name) == limit
    assert _compat.device_memory_limit("GPU:99") is None


def test_device_descriptions_are_by_short_names():
    descriptions = _compat.device_descriptions()
    assert "CPU:0" in descriptions
    for name, description in descriptions.items():
        if name.startswith("GPU"):
            assert "pci bus id: " in description


def test_held_functions_grow_with_each_trace():
    function = tf.function(lambda x: x + 1)
    function(tf.ones((1,)))
    before = _compat.held_functions()
    function(tf.ones((1,)))
    assert _compat.held_functions() == before
    function(tf.ones((2,)))
    assert _compat.held_functions() > before


def test_is_started_with_the_first_operation():
    printed = subprocesses.run_source(
        "import tensorflow as tf\n"
        "from keras_tfopt import _compat\n"
        "print(_compat.is_started())\n"
        "tf.ones(())\n"
        "print(_compat.is_started())\n"
    )
    assert printed.split() == ["False", "True"]
    tf.ones(())
    assert _compat.is_started()


def test_parse_hlo_and_sizes_of_shapes():
    function = tf.function(
        lambda x: (tf.cast(x > 0, tf.float16), x > 1), jit_compile=True
    )
    get = function.experimental_get_compiler_ir(tf.ones((3, 4)))
    module = _compat.parse_hlo(get("optimized_hlo_proto_serialized"))
    instructions = {
        instruction.id: instruction
        for computation in module.computations
        for instruction in computation.instructions
    }
    (root,) = (
        instructions[computation.root_id]
        for computation in module.computations
        if computation.id == module.entry_computation_id
    )
    assert root.opcode == "tuple"
    sizes = [
        _compat.hlo_shape_bytes(instructions[operand].shape)
        for operand in root.operand_ids
    ]
    assert sizes == [24, 12]
    assert _compat.hlo_shape_bytes(root.shape) == 0


def test_tracker_registers_the_variables_of_an_optimizer():
    optimizer = keras.optimizers.SGD()
    tracker = _compat.tracker_of(optimizer)
    variable = keras.Variable(0.0)
    tracker.add_to_store("variables", variable)
    assert optimizer.variables[-1] is variable


def test_untracked_is_what_an_optimizer_holds():
    optimizer = keras.optimizers.SGD()
    variables = vars(optimizer)["_variables"]
    assert type(variables) is not list
    assert type(_compat.untracked(variables)) is list
    _compat.untracked(variables).clear()
    assert optimizer.variables == []
    module = tf.Module()
    module.tracked = {}
    assert type(module.tracked) is not dict
    assert type(_compat.untracked(module.tracked)) is dict
    assert _compat.untracked([1]) == [1]


def test_every_function_is_tested_here():
    names = [
        name
        for name, value in vars(_compat).items()
        if inspect.isfunction(value)
        and value.__module__ == _compat.__name__
        and not name.startswith("_")
    ]
    used = {
        node.attr
        for node in ast.walk(ast.parse(pathlib.Path(__file__).read_text()))
        if isinstance(node, ast.Attribute)
    }
    assert set(names) <= used


def test_separate_collectives():
    def group_keys():
        strategy = tf.distribute.MirroredStrategy(["CPU:0"])
        return strategy.extended._collective_keys

    first = group_keys().get_group_key(["CPU:0"])
    _compat.separate_collectives()
    assert group_keys().get_group_key(["CPU:0"]) == first + 1000


def test_adds_by_halves():
    operations = tf.distribute.HierarchicalCopyAllReduce()
    by_halves = tf.distribute.MirroredStrategy(["CPU:0"], operations)
    assert _compat.adds_by_halves(by_halves)
    assert not _compat.adds_by_halves(tf.distribute.MirroredStrategy(["CPU:0"]))
    assert not _compat.adds_by_halves(tf.distribute.get_strategy())


def test_unscaled_losses(monkeypatch):
    strategy = tf.distribute.get_strategy()
    monkeypatch.setattr(type(strategy), "num_replicas_in_sync", 4)
    inputs = keras.Input((3,))
    dense = keras.layers.Dense(1, kernel_regularizer="l2")
    model = _compiled(keras.Model(inputs, dense(inputs)))
    x, y = tf.ones((2, 3)), tf.ones((2, 1))

    def total():
        return model.compute_loss(x, y, model(x))

    divided = total()
    with _compat.unscaled_losses():
        np.testing.assert_allclose(total(), 4 * divided, rtol=1e-6)
    assert total() == divided


@pytest.mark.parametrize("is_scaled", [True, False])
def test_without_reduction(is_scaled):
    inner = optimizer = keras.optimizers.SGD()
    if is_scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(inner)
    before = inner._all_reduce_sum_gradients
    pairs = [(1.0, "variable")]
    with _compat.without_reduction(optimizer):
        assert inner._all_reduce_sum_gradients(pairs) is pairs
    assert inner._all_reduce_sum_gradients == before
    source = inspect.getsource(type(inner)._backend_update_step)
    assert "self._all_reduce_sum_gradients(" in source
