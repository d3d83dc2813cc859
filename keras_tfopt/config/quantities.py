"""Quantities as people write them: shares, sizes and durations."""

import re
from typing import Annotated
from typing import Any

import pydantic

_SIZE_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SECONDS_OF = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]*)\s*")


def parse_ratio(value: Any) -> float:
    """Returns a share between 0 and 1, given as such or in percent.

    Args:
        value: Number from 0 to 1, or a string such as `"90%"`.

    Raises:
        ValueError: If it is neither.
    """
    number = value
    if isinstance(value, str):
        try:
            number = float(value.strip().removesuffix("%"))
        except ValueError:
            number = None
        if number is not None and value.strip().endswith("%"):
            number /= 100
    if not _is_number(number) or not 0 <= number <= 1:
        raise ValueError(
            "expected a share from 0 to 1, or a percentage such as '90%'"
        )
    return float(number)


def parse_bytes(value: Any) -> int:
    """Returns a size in bytes.

    Args:
        value: Integer of bytes, or a string such as `"512 MiB"` or `"2GB"`.

    Raises:
        ValueError: If it is neither.
    """
    amount, unit = _split(value)
    factor = _SIZE_UNITS.get(unit.upper())
    if amount is None or factor is None or amount < 0:
        raise ValueError(
            "expected a number of bytes, or a size such as '512MiB' or '2GB'"
        )
    return int(amount * factor)


def parse_seconds(value: Any) -> float:
    """Returns a duration in seconds.

    Args:
        value: Number of seconds, or a string such as `"30s"`, `"5m"`, `"1h"`.

    Raises:
        ValueError: If it is neither.
    """
    amount, unit = _split(value)
    factor = _SECONDS_OF.get(unit or "s")
    if amount is None or factor is None or not amount > 0:
        raise ValueError(
            "expected a positive number of seconds, or a duration such as "
            "'30s', '5m' or '1h'"
        )
    return amount * factor


def parse_switch(value: Any) -> Any:
    """Returns the word for what YAML 1.1 reads as a boolean: on, off."""
    return (
        {True: "on", False: "off"}[value] if value in (True, False) else value
    )


def _split(value: Any) -> tuple[float | None, str]:
    if _is_number(value):
        return float(value), ""
    match = isinstance(value, str) and _NUMBER_AND_UNIT.fullmatch(value)
    return (float(match[1]), match[2]) if match else (None, "")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


Ratio = Annotated[float, pydantic.BeforeValidator(parse_ratio)]
Bytes = Annotated[int, pydantic.BeforeValidator(parse_bytes)]
Seconds = Annotated[float, pydantic.BeforeValidator(parse_seconds)]
