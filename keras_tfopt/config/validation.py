"""Messages for what a schema refuses: where, what, and what was meant."""

import difflib
import types
import typing
from typing import Any
from typing import TypeVar

import pydantic

from keras_tfopt.config.document import Document
from keras_tfopt.config.document import Path
from keras_tfopt.config.errors import ConfigurationError

Model = TypeVar("Model", bound=pydantic.BaseModel)


def validate(schema: type[Model], document: Document) -> Model:
    """Returns a document as its schema has it.

    Args:
        schema: A pydantic model.
        document: `Document`.

    Raises:
        ConfigurationError: Names the line, the key, what was received and what
            was expected, for everything that is wrong.
    """
    try:
        return schema.model_validate(document.data)
    except pydantic.ValidationError as error:
        problems = [
            _describe(schema, document, problem)
            for problem in error.errors(include_url=False)
        ]
        raise ConfigurationError("\n".join(problems)) from error


def _describe(
    schema: type[pydantic.BaseModel], document: Document, problem: Any
) -> str:
    path = problem["loc"]
    line = document.line_of(path)
    where = (
        document.source if line is None else f"{document.source}, line {line}"
    )
    key = ".".join(str(part) for part in path) or "the document"
    if problem["type"] == "extra_forbidden":
        return f"{where}: unknown key {key!r}. {_known(schema, path)}"
    expected = problem["msg"]
    for prefix in (
        "Value error, expected ",
        "Input should be ",
        "Value error, ",
    ):
        expected = expected.removeprefix(prefix)
    return (
        f"{where}: invalid value for {key!r}. Received: "
        f"{problem['input']!r}. Expected: {expected}."
    )


def _known(schema: type[pydantic.BaseModel], path: Path) -> str:
    """Says which key was meant, or which keys there are."""
    known = list(_fields_at(schema, path[:-1]))
    near = difflib.get_close_matches(str(path[-1]), known, n=1)
    if near:
        return f"Did you mean {near[0]!r}?"
    return f"Expected: one of {known}."


def _fields_at(schema: type[pydantic.BaseModel], path: Path) -> list[str]:
    """Returns the keys of the section at a path."""
    for part in path:
        field = schema.model_fields.get(str(part))
        if field is None:
            # The name of a member of a union, not a key.
            continue
        section = _section_in(field.annotation)
        if section is None:
            return []
        schema = section
    return list(schema.model_fields)


def _section_in(annotation: Any) -> type[pydantic.BaseModel] | None:
    if isinstance(annotation, type):
        is_section = issubclass(annotation, pydantic.BaseModel)
        return annotation if is_section else None
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for member in typing.get_args(annotation):
            section = _section_in(member)
            if section is not None:
                return section
    return None
