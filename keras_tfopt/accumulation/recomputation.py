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
from typing import TypeAlias

import keras
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt import _compat_remat
from keras_tfopt.accumulation.backward_order import After
from keras_tfopt.accumulation.backward_order import together
from keras_tfopt.accumulation.flat_nest import FlatNest
from keras_tfopt.accumulation.host_memory import is_frozen_on_host
from keras_tfopt.accumulation.host_memory import is_worth_moving
from keras_tfopt.accumulation.host_memory import read_on_host
from keras_tfopt.accumulation.host_memory import to_host
from keras_tfopt.accumulation.purity import unrepeatable
from keras_tfopt.accumulation.scope import RecordingScope
from keras_tfopt.plan import ExecutionPlan


class Recomputed:
    """A function that is called again for its gradient.

    Args:
        function: Callable of nests of tensors, with any other arguments.
        layers: Layers that the function calls. Losses that they add keep their
            owners.
        plan: `ExecutionPlan`. Says whether XLA will compile the graph, where
            that cannot be seen while it is built, and what waits on the host
            for the second call. Defaults to neither.
    """

    def __init__(
        self,
        function: Callable,
        layers: Sequence[keras.layers.Layer] = (),
        plan: ExecutionPlan | None = None,
    ) -> None:
        self._function = function
        self._layers = layers
        self._plan = ExecutionPlan() if plan is None else plan

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function now, and again when its gradient is asked for."""
        inputs = FlatNest.of((args, kwargs))
        if inputs.is_symbolic:
            return self._function(*args, **kwargs)
        state = _compat_remat.call_state()
        scope = _BlockScope(fetch=self._fetch_behind(inputs.tensors))
        with _compat_remat.stop_recording():
            kept = self._keep(inputs.tensors)
        known = _count_operations()
        with _compat_remat.stop_recording():
            outputs, losses = self._run(inputs, inputs.tensors, scope)
        made = _operations()[known:]
        _check(made)
        with _compat_remat.stop_recording():
            outputs = _behind_copies(outputs, kept)
        # Recorded by tapes, unlike the readings inside.
        values = [
            tf.convert_to_tensor(scope.outer_value(variable))
            for variable in scope.read
        ]
        sources = [*inputs.tensors, *values]
        captured = _captured(made, sources)
        differentiable = _floats([*outputs.tensors, *losses])
        roots = _floats([*sources, *captured])

        def backward(*upstream: Any) -> list[Any]:
            with _compat_remat.restored_call_state(state):
                return self._backward(
                    inputs, kept, scope, values, captured, upstream
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
        inputs: FlatNest,
        tensors: list[tf.Tensor],
        scope: "_BlockScope",
    ) -> tuple[FlatNest, list[tf.Tensor]]:
        """Calls the function on given tensors in a scope."""
        args, kwargs = inputs.with_tensors(tensors).nest
        with scope:
            result = self._function(*args, **kwargs)
        return FlatNest.of(result), list(scope.losses)

    def _keep(self, tensors: list[tf.Tensor]) -> "list[_Kept]":
        """Returns what is held of the inputs for the second call."""
        moves = self._plan.offloads("activations")
        return [
            _Kept(to_host(tensor), is_away=True)
            if moves and is_worth_moving(tensor)
            else _Kept(tensor, is_away=False)
            for tensor in tensors
        ]

    def _fetch_behind(self, tensors: list[tf.Tensor]) -> "_Fetch | None":
        """Returns what reads frozen weights when the inputs are there."""
        if not self._plan.offloads("frozen_weights"):
            return None
        return lambda stored: read_on_host(stored, tensors)

    def _backward(
        self,
        inputs: FlatNest,
        kept: "list[_Kept]",
        first: "_BlockScope",
        values: list[tf.Tensor],
        captured: list[tf.Tensor],
        upstream: tuple,
    ) -> list[Any]:
        """Calls the function again and differentiates it."""
        variables = first.read
        is_compiled = self._plan.jit_compile or _compat_remat.is_in_xla()
        after = After(upstream, is_compiled)
        tensors = [
            after.fetch(one.tensor) if one.is_away else after(one.tensor)
            for one in kept
        ]
        weights = [
            after(value, is_weight=variable.trainable)
            for variable, value in zip(variables, values, strict=True)
        ]
        sources = _floats([*tensors, *weights, *captured])
        tape = tf.GradientTape(watch_accessed_variables=False)
        scope = _BlockScope(
            list(zip(variables, weights, strict=True)),
            tape,
            None if first.fetch is None else after.read,
        )
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
        return together(gradients[: len(sources)])

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


@dataclasses.dataclass(frozen=True)
class _Kept:
    """An input that is held for the second call.

    Attributes:
        tensor: The tensor, or its copy on the host.
        is_away: Boolean. Whether it is that copy.
    """

    tensor: tf.Tensor
    is_away: bool


# Reads a variable that is on the host at the right time.
_Fetch: TypeAlias = Callable[[tf.Variable], tf.Tensor]


class _BlockScope(RecordingScope):
    """A `RecordingScope` inside of another, which notes what is read.

    Args:
        state_mapping: As for `RecordingScope`.
        tape: As for `RecordingScope`.
        fetch: Callable that reads a frozen variable from the host. They are
            not noted: it is done again each time. Defaults to `None`.
    """

    def __init__(
        self,
        state_mapping: list[tuple[keras.Variable, Any]] | None = None,
        tape: tf.GradientTape | None = None,
        fetch: _Fetch | None = None,
    ) -> None:
        super().__init__(None, tape)
        self.fetch = fetch
        # Past Keras, which would cast them where layers compute in half
        # precision, out of the sight of the tape.
        self.state_mapping = {id(k): v for k, v in state_mapping or []}
        self.read: list[keras.Variable] = []

    def get_current_value(self, variable: keras.Variable) -> Any:
        """Returns the value of a variable, and notes its first reading."""
        if id(variable) in self.state_mapping:
            return self.state_mapping[id(variable)]
        if self.fetch is not None and not variable.trainable:
            value = self.outer_value(variable)
            if is_frozen_on_host(value):
                return self.fetch(value)
        if all(variable is not known for known in self.read):
            self.read.append(variable)
        # Not kept: this may be a branch, whose tensors are not seen outside.
        return self.outer_value(variable)

    def outer_value(self, variable: keras.Variable) -> Any:
        """Returns the value that a variable has outside of this scope."""
        outer = self.original_scope
        value = None if outer is None else outer.get_current_value(variable)
        return _compat.stored_value(variable) if value is None else value


def _behind_copies(outputs: FlatNest, kept: list[_Kept]) -> FlatNest:
    """Returns outputs that wait for the copies of the inputs.

    Otherwise the device may run ahead of them, with all originals alive.
    """
    copies = [one.tensor for one in kept if one.is_away]
    if not copies or tf.executing_eagerly():
        return outputs
    with tf.control_dependencies(copies):
        return outputs.with_tensors([tf.identity(t) for t in outputs.tensors])


def _floats(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the tensors that can have a gradient."""
    return [tensor for tensor in tensors if _is_float(tensor)]


def _is_float(tensor: tf.Tensor) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_complex


def _replace(tensors: list[tf.Tensor], attached: Any) -> list[tf.Tensor]:
    return [next(attached) if _is_float(one) else one for one in tensors]


def _count_operations() -> int:
    return len(_operations())


def _operations() -> list[tf.Operation]:
    """Returns what is in the graph so far; only a graph can tell."""
    if tf.executing_eagerly():
        return []
    return tf.compat.v1.get_default_graph().get_operations()


def _check(operations: list[tf.Operation]) -> None:
    """Raises if a second call would not be the same as the first."""
    reasons = unrepeatable(operations)
    if reasons:
        raise ValueError(
            "What is computed again must be the same again. Received: "
            f"{'; '.join(reasons)}. Expected: `keras.random` with a "
            "`SeedGenerator`, no other variables than those of Keras, and no "
            "Python functions but with `stateful=False`. Leave this layer out "
            "of rematerialization."
        )


def _captured(
    made: list[tf.Operation], sources: list[tf.Tensor]
) -> list[tf.Tensor]:
    """Returns tensors that a function took past its arguments.

    They are sources of gradients like its arguments.
    """
    inside = {operation.name for operation in made}
    seen = {id(source) for source in sources}
    found = []
    for operation in made:
        for tensor in operation.inputs:
            if tensor.op.name in inside or id(tensor) in seen:
                continue
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
