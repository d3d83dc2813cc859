"""What workers say to each other so that all of them do the same."""

from collections.abc import Iterator
import contextlib
import functools
import json
import logging
from typing import Any

import tensorflow as tf

from keras_tfopt.distribution.workers import WorkerReplicas
from keras_tfopt.errors import WorkerLost
from keras_tfopt.errors import allocation_line

_logger = logging.getLogger("keras_tfopt")

# Bytes of an error that are told to the other workers.
_ERROR_BYTES = 4096
_MESSAGE_CHARACTERS = 1500


class Agreement:
    """Lets the workers of a strategy exchange values, and fail together.

    A worker that raised alone would leave the others waiting in a collective.
    So each tells, where all meet, whether what it did by itself has succeeded;
    if not, all raise the error of the first one that failed, and decide alike
    what to do about it.

    Args:
        replicas: `WorkerReplicas`.

    Attributes:
        replicas: As given.
    """

    def __init__(self, replicas: WorkerReplicas) -> None:
        self.replicas = replicas
        self._functions: dict[str, Any] = {}

    def exchange(
        self, parts: list[Any], error: Exception | None = None
    ) -> tuple[list[Any], Exception | None]:
        """Tells all workers what the replicas here have, and what failed.

        Every worker must call it, with nests of the same structure and shapes.

        Args:
            parts: List of a nest of tensors or numbers for each replica of this
                process.
            error: What was raised here since the last exchange, or `None`.

        Returns:
            List with the nests of the replicas of all workers, and the error
            for all of them to raise: that of the first worker that has one, on
            the others in the form in which it was told; `None` if all is well.

        Raises:
            WorkerLost: If a worker does not answer.
        """
        failed = tf.constant(error is not None)
        with lost_workers():
            everything = self._everywhere([(failed, part) for part in parts])
        failures = [place for place, (flag, _) in enumerate(everything) if flag]
        shared = None
        if failures:
            worker = failures[0] // self.replicas.count
            shared = self._share_error(worker, error)
        return [part for _, part in everything], shared

    def gather(self, numbers: list[int]) -> list[list[int]]:
        """Returns the numbers of each worker, the chief's first.

        Args:
            numbers: List of integers; as many on each worker.
        """
        parts = [tf.constant(numbers, tf.int64)] * self.replicas.count
        everything, _ = self.exchange(parts)
        return [
            part.numpy().tolist() for part in everything[:: self.replicas.count]
        ]

    def _everywhere(self, parts: list[Any]) -> list[Any]:
        spec = tf.nest.map_structure(tf.type_spec_from_value, parts)
        key = repr(spec)
        if key not in self._functions:
            # A function of its own for each: TensorFlow warns of many traces.
            function = tf.function(self.replicas.everywhere, autograph=False)
            self._functions[key] = function.get_concrete_function(spec)
        return self._functions[key](parts)

    def _share_error(self, worker: int, error: Exception | None) -> Exception:
        own = error if worker == self.replicas.worker else None
        text = _encode(own) if own is not None else b""
        part = tf.constant(list(text.ljust(_ERROR_BYTES)), tf.int32)
        with lost_workers():
            told = self._everywhere([part] * self.replicas.count)
        if own is not None:
            return own
        codes = told[worker * self.replicas.count].numpy().tolist()
        return _decode(bytes(codes), worker)


@functools.cache
def agreement_of(strategy: tf.distribute.Strategy) -> Agreement:
    """Returns how the workers of a strategy agree: one way for all models."""
    return Agreement(WorkerReplicas(strategy))


@contextlib.contextmanager
def lost_workers() -> Iterator[None]:
    """Turns what TensorFlow says of lost workers into `WorkerLost`."""
    try:
        yield
    except tf.errors.OpError as error:
        if not is_lost_worker(error):
            raise
        lost = WorkerLost(_telling_line(error))
        # Python prints nothing of an exception that ends a process.
        _logger.error("%s", lost)
        raise lost from error


def is_lost_worker(error: BaseException) -> bool:
    """Whether an error says that another worker does not answer.

    No collective works in this process from then on.
    """
    if not isinstance(error, tf.errors.OpError):
        return False
    if isinstance(error, tf.errors.UnavailableError):
        return True
    text = str(error)
    return any(sign in text for sign in _SIGNS)


_SIGNS = (
    "Collective ops is aborted",
    "Connection reset by peer",
    "Socket closed",
    "coordination service",
)


def _telling_line(error: Exception) -> str:
    """Returns the line of an error that says what became of a worker."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if any(s in line for s in _SIGNS)]
    return (telling or lines or [type(error).__name__])[0]


def _encode(error: Exception) -> bytes:
    message = str(error)
    if len(message) > _MESSAGE_CHARACTERS:
        # TensorFlow says what happened last, and where before.
        end = message[-_MESSAGE_CHARACTERS:]
        message = (
            f"{allocation_line(error)[: _MESSAGE_CHARACTERS // 4]}\n...{end}"
        )
    message = message.encode("ascii", "replace").decode()
    # All others take more than two bytes in JSON.
    message = "".join(
        c if c.isprintable() or c == "\n" else "?" for c in message
    )
    told = {"type": type(error).__name__, "message": message}
    return json.dumps(told).encode()[:_ERROR_BYTES]


def _decode(text: bytes, worker: int) -> Exception:
    try:
        told = json.loads(text)
    except json.JSONDecodeError:
        return RuntimeError(f"Worker {worker} failed: {text.decode().strip()}")
    name, message = told["type"], told["message"]
    message = f"On worker {worker}: {message}"
    kind = getattr(tf.errors, name, None)
    if isinstance(kind, type) and issubclass(kind, tf.errors.OpError):
        if kind is not tf.errors.OpError:
            return kind(None, None, message)
    if name == "MemoryError":
        return MemoryError(message)
    return RuntimeError(f"{name}. {message}")
