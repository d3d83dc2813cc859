"""Errors that say what became of a training, and not of an argument."""

import tensorflow as tf


class InterruptedCommitError(RuntimeError):
    """A step failed while it wrote its results.

    The pure step of a batch can be run again, but of the writes some are made
    and some are not. Weights and optimizer slots belong to no step; restore
    them from a backup.
    """


class MissingExtraError(ImportError):
    """A feature needs a package that only an extra installs."""


class OutOfMemoryError(MemoryError):
    """A step does not fit into memory, and nothing is left to try."""


class TrainingDivergedError(RuntimeError):
    """Too many steps in a row had losses or gradients that are not sound."""


class WorkerLost(SystemExit):
    """Another worker does not answer, and this process cannot train on.

    TensorFlow connects workers once in the life of a process. Nobody has to
    catch it: the process then ends with exit code 75, by which `sysexits.h`
    names a failure that is over when the program is started again.

    Args:
        reason: String. What TensorFlow says.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(75)
        self.reason = reason

    def __str__(self) -> str:
        """Returns what happened, in words."""
        return (
            "Another worker does not answer, and nothing that workers do "
            "together works in this process from now on. Start all workers "
            f"again. TensorFlow says: {self.reason}"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that a device or the host is out of memory.

    TensorFlow has a class for it. A Python function's `MemoryError` may arrive
    wrapped, and XLA reports a failed allocation on a GPU as an internal error.
    """
    if isinstance(error, (tf.errors.ResourceExhaustedError, MemoryError)):
        return True
    text = str(error)
    if isinstance(error, tf.errors.UnknownError):
        return "MemoryError" in text
    if isinstance(error, tf.errors.InternalError):
        return any(sign in text for sign in _ALLOCATION_SIGNS)
    return False


def allocation_line(error: BaseException) -> str:
    """Returns the line of an out-of-memory error that says what did not fit.

    TensorFlow puts where it happened, in many lines, before what happened.
    """
    lines = str(error).splitlines() or [""]
    return next((line for line in lines if "OOM when" in line), lines[0])


_ALLOCATION_SIGNS = (
    "CUDA_ERROR_OUT_OF_MEMORY",
    "Failed to allocate",
    "Out of memory",
    "RESOURCE_EXHAUSTED",
    "out of memory",
)
