"""When XLA compiles, as data."""

from collections.abc import Sequence
import dataclasses
import numbers
import os
import tempfile
from typing import Any

from keras_tfopt.plan import check_positive_integer

MODES = ("on", "off", "auto", "auto_clustering")
NEW_SHAPE_POLICIES = ("compile", "pad", "fallback")


@dataclasses.dataclass(frozen=True)
class CompilationSettings:
    """When XLA compiles a step, and how much of that is too much.

    Args:
        mode: String. One of `MODES`.
        max_shapes: Integer. Most shapes to compile for.
        max_compile_seconds: Float or `None`. Most time to spend on it.
        on_new_shape: String. One of `NEW_SHAPE_POLICIES`.
        row_buckets: Sequence of integers or `None`. Numbers of rows to pad to.
        compile_short_batches: Boolean. Whether a batch that only has fewer rows
            than others is compiled for.
        check_every: Integer or `None`. Every how many steps one runs
            uncompiled, for its checks.
        trial_steps: Integer. Steps of each kind that `"auto"` measures.
        dump_dir: Path or `None`. Where to write what XLA made.
        max_dump_bytes: Integer. How much to write for each function.

    Raises:
        ValueError: If a value is none of these.
    """

    mode: str = "on"
    max_shapes: int = 100
    max_compile_seconds: float | None = 600.0
    on_new_shape: str = "compile"
    row_buckets: Sequence[int] | None = None
    compile_short_batches: bool = False
    check_every: int | None = None
    trial_steps: int = 10
    dump_dir: str | os.PathLike | None = None
    max_dump_bytes: int = 2**26

    def __post_init__(self) -> None:
        check_mode(self.mode)
        _check_choice("on_new_shape", self.on_new_shape, NEW_SHAPE_POLICIES)
        _check_buckets(self.row_buckets, self.on_new_shape)
        for name in ("max_shapes", "trial_steps", "max_dump_bytes"):
            value = getattr(self, name)
            check_positive_integer(name, value)
            if value is None:
                raise _error(name, value, "an integer of at least 1")
        check_positive_integer("check_every", self.check_every)
        if self.check_every == 1:
            expected = "at least 2; every step runs uncompiled with mode='off'"
            raise _error("check_every", 1, expected)
        _check_seconds(self.max_compile_seconds)
        _check_directory(self.dump_dir)


def check_mode(mode: Any) -> None:
    """Raises if a mode is unknown.

    Raises:
        ValueError: Names the modes there are.
    """
    _check_choice("mode", mode, MODES)


def _check_buckets(buckets: Any, on_new_shape: str) -> None:
    if buckets is None:
        return
    if on_new_shape != "pad":
        expected = f"None, where on_new_shape={on_new_shape!r} pads nothing"
        raise _error("row_buckets", buckets, expected)
    is_sequence = isinstance(buckets, Sequence) and not isinstance(buckets, str)
    if not is_sequence or not buckets or None in buckets:
        expected = "integers of at least 1, or None"
        raise _error("row_buckets", buckets, expected)
    for size in buckets:
        check_positive_integer("row_buckets", size)


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise _error(name, value, f"one of {list(choices)}")


def _check_seconds(value: Any) -> None:
    if value is None:
        return
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    # A NaN is not above zero either.
    if not is_number or not value > 0:
        expected = "a positive number of seconds, or None for no limit"
        raise _error("max_compile_seconds", value, expected)


def _check_directory(path: Any) -> None:
    if path is None:
        return
    try:
        os.makedirs(path, exist_ok=True)
        # Permissions do not tell: file systems can be read-only, or full.
        with tempfile.TemporaryFile(dir=path):
            pass
    except (OSError, TypeError) as error:
        expected = f"a directory that can be written to, or made ({error})"
        raise _error("dump_dir", path, expected) from error


def _error(name: str, value: Any, expected: str) -> ValueError:
    return ValueError(
        f"Invalid value for argument `{name}`. "
        f"Received: {name}={value!r}. Expected: {expected}."
    )
