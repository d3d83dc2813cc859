"""What XLA fuses is counted as it can be counted by hand."""

import pytest
import tensorflow as tf

from keras_tfopt.compilation.fusion import FusionFigures
from keras_tfopt.compilation.inspection import CompiledFunction


def _compiled(function, *shape):
    return CompiledFunction(
        tf.function(function, jit_compile=True),
        (tf.TensorSpec(shape), None),
    )


@pytest.mark.parametrize(
    "function, expected",
    [
        # Between three operations, two values of 40,000 bytes.
        (lambda x: tf.exp(tf.tanh(x) * 2.0), FusionFigures(1, 3, 80_000)),
        (lambda x: tf.tanh(x), FusionFigures(0, 0, 0)),
        # A product of matrices is no part of a fusion.
        (lambda x: tf.tanh(x) @ x, FusionFigures(0, 0, 0)),
        # The condition takes a byte for each value.
        (
            lambda x: tf.where(x > 0, tf.sqrt(x), x),
            FusionFigures(1, 3, 50_000),
        ),
    ],
)
def test_fusions(function, expected):
    compiled = _compiled(lambda batch: function(batch[0]), 100, 100)
    assert compiled.fusion() == expected


def test_dump(tmp_path):
    compiled = _compiled(lambda batch: tf.exp(tf.tanh(batch[0])), 4)
    paths = compiled.dump(tmp_path, "step", 10**6)
    assert {path.name for path in paths} == {
        "step.graph.pb",
        "step.before.hlo",
        "step.after.hlo",
        "step.after.dot",
        "step.after.pb",
        "step.before.stablehlo.mlir",
    }
    text = (tmp_path / "step.after.hlo").read_text()
    assert "exponential" in text and "fusion(" in text
    assert (tmp_path / "step.after.dot").read_text().startswith("digraph")
    graph = tf.compat.v1.GraphDef.FromString(
        (tmp_path / "step.graph.pb").read_bytes()
    )
    assert {"Tanh", "Exp"} <= {node.op for node in graph.node}


def test_dump_within_a_limit(tmp_path):
    compiled = _compiled(lambda batch: tf.tanh(batch[0]), 4)
    whole = compiled.dump(tmp_path, "whole", 10**6)
    sizes = [path.stat().st_size for path in whole]
    limit = sizes[0] + min(sizes[1:])
    part = compiled.dump(tmp_path, "part", limit)
    assert 0 < sum(path.stat().st_size for path in part) <= limit
    assert compiled.dump(tmp_path, "none", 1) == []


def test_ragged_inputs_are_not_shown():
    spec = tf.RaggedTensorSpec((None, None))
    function = tf.function(tf.reduce_sum, jit_compile=True)
    with pytest.raises(TypeError, match="RaggedTensorSpec.*Expected"):
        CompiledFunction(function, spec).fusion()
