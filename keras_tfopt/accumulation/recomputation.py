"""Calling a function again in the backward pass: the core of remat.

The second call must compute what the first did. So it gets the same inputs,
masks and values of variables, also the states of seeds; it sees the same calls
of layers around it; and what it writes is thrown away. It must also come no
sooner than the gradient that needs it, or nothing would be saved: TensorFlow
and XLA are free to run it along with the first call, or to take the two for
one.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt import _compat_remat
from keras_tfopt.accumulation.scope import RecordingScope


class Recomputed:
    """A function that is called again for its gradient.

    Args:
        function: Callable of nests of tensors, with any other arguments.
        layers: Layers that the function calls. Losses that they add keep their
            owners.
        is_compiled: Boolean. Whether XLA will compile the graph, where that
            cannot be seen while it is built. Defaults to `False`.
    """

    def __init__(
        self,
        function: Callable,
        layers: Sequence[keras.layers.Layer] = (),
        is_compiled: bool = False,
    ) -> None:
        self._function = function
        self._layers = layers
        self._is_compiled = is_compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function now, and again when its gradient is asked for."""
        inputs = _Tensors.of((args, kwargs))
        if inputs.is_symbolic:
            return self._function(*args, **kwargs)
        state = _compat_remat.call_state()
        scope = _BlockScope()
        known = _count_operations()
        with _compat_remat.stop_recording():
            outputs, losses = self._run(inputs, inputs.tensors, scope)
        # Recorded by tapes, unlike the readings inside.
        values = [
            tf.convert_to_tensor(scope.outer_value(variable))
            for variable in scope.read
        ]
        sources = [*inputs.tensors, *values]
        captured = _captured(known, sources)
        differentiable = _floats([*outputs.tensors, *losses])
        roots = _floats([*sources, *captured])

        def backward(*upstream: Any) -> list[Any]:
            with _compat_remat.restored_call_state(state):
                return self._backward(
                    inputs, scope.read, values, captured, upstream
                )

        @tf.custom_gradient
        def attach(*_: tf.Tensor) -> tuple:
            # Already computed: only now is known which variables were read.
            return tuple(differentiable), backward

        if differentiable and roots:
            attached = iter(attach(*roots))
            outputs, losses = (
                outputs.with_tensors(_replace(outputs.tensors, attached)),
                _replace(losses, attached),
            )
        self._add_losses(scope.losses, losses)
        for variable in scope.written:
            variable.assign(scope.get_current_value(variable))
        return outputs.nest

    def _run(
        self,
        inputs: "_Tensors",
        tensors: list[tf.Tensor],
        scope: "_BlockScope",
    ) -> tuple["_Tensors", list[tf.Tensor]]:
        """Calls the function on given tensors in a scope."""
        args, kwargs = inputs.with_tensors(tensors).nest
        with scope:
            result = self._function(*args, **kwargs)
        return _Tensors.of(result), list(scope.losses)

    def _backward(
        self,
        inputs: "_Tensors",
        variables: list[keras.Variable],
        values: list[tf.Tensor],
        captured: list[tf.Tensor],
        upstream: tuple,
    ) -> list[Any]:
        """Calls the function again and differentiates it."""
        is_compiled = self._is_compiled or _compat_remat.is_in_xla()
        after = _After(upstream, is_compiled)
        tensors = [after(tensor) for tensor in inputs.tensors]
        weights = [
            after(value, is_weight=variable.trainable)
            for variable, value in zip(variables, values, strict=True)
        ]
        sources = _floats([*tensors, *weights, *captured])
        tape = tf.GradientTape(watch_accessed_variables=False)
        scope = _BlockScope(list(zip(variables, weights, strict=True)), tape)
        with tape:
            tape.watch(sources)
            outputs, losses = self._run(inputs, tensors, scope)
        for loss in losses:
            self._owner(loss)
        overwritten = [v for v in scope.written if v.trainable]
        gradients = tape.gradient(
            _floats([*outputs.tensors, *losses]),
            sources + [scope.get_current_value(v) for v in overwritten],
            output_gradients=list(upstream),
        )
        # A variable that was overwritten is the source of both its values.
        for variable, gradient in zip(
            overwritten, gradients[len(sources) :], strict=True
        ):
            index = _index(sources, weights[_index(variables, variable)])
            gradients[index] = _sum(gradients[index], gradient)
        return _together(gradients[: len(sources)])

    def _add_losses(
        self, found: list[tf.Tensor], attached: list[tf.Tensor]
    ) -> None:
        """Lets the layers that added losses add those with a gradient."""
        for loss, other in zip(found, attached, strict=True):
            owner = self._owner(loss)
            if owner is None:
                raise ValueError(
                    "A loss that is added inside of a rematerialized function "
                    "would be lost. Received: `add_loss`, or an activity "
                    "regularizer, of a layer that the function calls. "
                    "Expected: a layer in place of the function. Use "
                    "`remat(layer)`, or `apply_remat(model)`."
                )
            owner.add_loss(other)

    def _owner(self, loss: tf.Tensor) -> keras.layers.Layer | None:
        """Returns the layer that added a loss, and lets it forget."""
        for layer in self._layers:
            if _compat_remat.take_loss(layer, loss):
                return layer
        return None


class _BlockScope(RecordingScope):
    """A `RecordingScope` inside of another, which notes what is read.

    Args:
        state_mapping: As for `RecordingScope`.
        tape: As for `RecordingScope`.
    """

    def __init__(
        self,
        state_mapping: list[tuple[keras.Variable, Any]] | None = None,
        tape: tf.GradientTape | None = None,
    ) -> None:
        super().__init__(None, tape)
        # Past Keras, which would cast them where layers compute in half
        # precision, out of the sight of the tape.
        self.state_mapping = {id(k): v for k, v in state_mapping or []}
        self.read: list[keras.Variable] = []

    def get_current_value(self, variable: keras.Variable) -> Any:
        """Returns the value of a variable, and notes its first reading."""
        if id(variable) in self.state_mapping:
            return self.state_mapping[id(variable)]
        if all(variable is not known for known in self.read):
            self.read.append(variable)
        # Not kept: this may be a branch, whose tensors are not seen outside.
        return self.outer_value(variable)

    def outer_value(self, variable: keras.Variable) -> Any:
        """Returns the value that a variable has outside of this scope."""
        outer = self.original_scope
        value = None if outer is None else outer.get_current_value(variable)
        return _compat.stored_value(variable) if value is None else value


class _After:
    """Makes tensors that are not there before gradients are.

    TensorFlow honors control dependencies. XLA drops them and only follows
    data; seeds must follow as well, or it keeps the masks of the first call.

    Args:
        upstream: Gradients to wait for.
        is_compiled: Boolean. Whether XLA will compile the graph.
    """

    def __init__(self, upstream: tuple, is_compiled: bool) -> None:
        self._gradients = [
            dy.values if isinstance(dy, tf.IndexedSlices) else dy
            for dy in upstream
        ]
        self._is_true: tf.Tensor | None = None
        if is_compiled and self._gradients:
            first = [tf.reshape(dy, [-1])[:1] for dy in self._gradients]
            flags = [tf.cast(one, tf.bool) for one in first]
            flag = tf.reduce_any(tf.concat(flags, 0))
            # True, but XLA does not know that.
            self._is_true = tf.equal(flag, flag)

    def __call__(self, tensor: tf.Tensor, is_weight: bool = False) -> tf.Tensor:
        """Returns a tensor of the same value.

        Args:
            tensor: The tensor.
            is_weight: Boolean. Whether there are inputs beside it that wait,
                so that under XLA it need not be copied. Defaults to `False`.
        """
        if tf.executing_eagerly():
            return tf.identity(tensor)
        if self._is_true is None:
            with tf.control_dependencies(self._gradients):
                return tf.identity(tensor)
        if is_weight or tensor.dtype in (tf.string, tf.resource, tf.variant):
            return tf.identity(tensor)
        if tensor.dtype == tf.bool:
            return tf.logical_and(tensor, self._is_true)
        zero = tf.where(self._is_true, 0.0, float("nan"))
        return tensor + tf.cast(zero, tensor.dtype)


@dataclasses.dataclass(frozen=True)
class _Tensors:
    """A nest whose tensors, and the masks on them, are one flat list.

    Attributes:
        structure: Nest. As given.
        leaves: List. Its leaves, those that are no tensors included.
        masked: Indices of the leaves that carry a mask of Keras.
        tensors: List of the tensors in order, followed by the masks.
    """

    structure: Any
    leaves: list[Any]
    masked: list[int]
    tensors: list[tf.Tensor]

    @classmethod
    def of(cls, nest: Any) -> "_Tensors":
        """Flattens a nest."""
        leaves = tf.nest.flatten(nest, expand_composites=True)
        tensors = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]
        masked = [
            index
            for index, leaf in enumerate(leaves)
            if isinstance(_compat.get_mask(leaf), tf.Tensor)
        ]
        masks = [_compat.get_mask(leaves[index]) for index in masked]
        return cls(nest, leaves, masked, tensors + masks)

    @property
    def is_symbolic(self) -> bool:
        """Whether Keras is building a model."""
        return any(isinstance(leaf, keras.KerasTensor) for leaf in self.leaves)

    def with_tensors(self, tensors: list[tf.Tensor]) -> "_Tensors":
        """Returns the same nest with other tensors and masks."""
        waiting = iter(tensors)
        leaves = [
            next(waiting) if isinstance(leaf, tf.Tensor) else leaf
            for leaf in self.leaves
        ]
        for index in self.masked:
            _compat.set_mask(leaves[index], next(waiting))
        nest = tf.nest.pack_sequence_as(
            self.structure, leaves, expand_composites=True
        )
        return _Tensors(nest, leaves, self.masked, tensors)

    @property
    def nest(self) -> Any:
        """The nest."""
        return self.structure


def _together(gradients: list[Any]) -> list[Any]:
    """Returns gradients none of which is there before the others.

    Otherwise those of inputs may run ahead, down to the first layer, and those
    of weights follow with all that was computed again for them still alive.
    """
    if tf.executing_eagerly():
        return gradients
    found = [gradient for gradient in gradients if gradient is not None]
    with tf.control_dependencies(_leaves(found)):
        return [
            None
            if gradient is None
            else tf.nest.map_structure(
                tf.identity, gradient, expand_composites=True
            )
            for gradient in gradients
        ]


def _leaves(nest: Any) -> list[tf.Tensor]:
    return tf.nest.flatten(nest, expand_composites=True)


def _floats(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the tensors that can have a gradient."""
    return [tensor for tensor in tensors if _is_float(tensor)]


def _is_float(tensor: tf.Tensor) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_complex


def _replace(tensors: list[tf.Tensor], attached: Any) -> list[tf.Tensor]:
    return [next(attached) if _is_float(one) else one for one in tensors]


def _count_operations() -> int:
    if tf.executing_eagerly():
        return 0
    return len(tf.compat.v1.get_default_graph().get_operations())


def _captured(known: int, sources: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns tensors that a function took past its arguments.

    They are sources of gradients like its arguments. Only a graph shows them.
    """
    if tf.executing_eagerly():
        return []
    made = tf.compat.v1.get_default_graph().get_operations()[known:]
    inside = {operation.name for operation in made}
    seen = {id(source) for source in sources}
    found = []
    for operation in made:
        for tensor in operation.inputs:
            is_outside = tensor.op.name not in inside
            if is_outside and id(tensor) not in seen:
                seen.add(id(tensor))
                if _is_float(tensor) and tensor.op.type != "Const":
                    found.append(tensor)
    return found


def _index(objects: list, wanted: Any) -> int:
    return next(i for i, one in enumerate(objects) if one is wanted)


def _sum(first: Any, second: Any) -> Any:
    if first is None or second is None:
        return second if first is None else first
    return tf.convert_to_tensor(first) + tf.convert_to_tensor(second)
