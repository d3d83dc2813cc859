"""A YAML file as plain data that knows its lines."""

import dataclasses
import os
import re
from typing import Any

import yaml

from keras_tfopt.config.errors import ConfigurationError

Path = tuple[str | int, ...]

_PLAIN = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


@dataclasses.dataclass(frozen=True)
class Document:
    """What a YAML file says.

    Attributes:
        data: Nest of dicts, lists and scalars.
        lines: Dict from the path of a value to its line, from 1.
        source: String. Name of the file, for messages.
    """

    data: Any
    lines: dict[Path, int] = dataclasses.field(default_factory=dict)
    source: str = "the configuration"

    def line_of(self, path: Path) -> int | None:
        """Returns the line of a value, or of the nearest one around it."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return None


def parse_yaml(text: str, source: str = "the configuration") -> Document:
    """Reads YAML; no tag in it makes an object, and no code is run.

    `${NAME}` stands for an environment variable, `${NAME:-value}` for one that
    may be missing.

    Args:
        text: String.
        source: String. Name of the file, for messages.

    Returns:
        `Document`.

    Raises:
        ConfigurationError: If it is no YAML, says a key twice, or names a
            variable that is not set.
    """
    loader = yaml.SafeLoader(text)
    try:
        reader = _Reader(loader, source)
        node = loader.get_single_node()
        data = None if node is None else reader.read(node, ())
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{source} is no YAML: {error}") from error
    finally:
        loader.dispose()
    return Document(data, reader.lines, source)


class _Reader:
    """Turns nodes into data and notes their lines."""

    def __init__(self, loader: yaml.SafeLoader, source: str) -> None:
        self._loader = loader
        self._source = source
        self.lines: dict[Path, int] = {}

    def read(self, node: yaml.Node, path: Path) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN:
            raise ConfigurationError(
                f"{self._source}, line {node.start_mark.line + 1}: the tag "
                f"{node.tag!r} is none that a configuration has. Expected: "
                "plain mappings, sequences and values."
            )
        if isinstance(node, yaml.MappingNode):
            return self._read_mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [
                self.read(item, (*path, index))
                for index, item in enumerate(node.value)
            ]
        return self._read_scalar(node)

    def _read_mapping(self, node: yaml.MappingNode, path: Path) -> dict:
        self._check_unique(node)
        # Puts what merge keys (`<<`) bring first: what stands here wins.
        self._loader.flatten_mapping(node)
        result = {}
        for key_node, value_node in node.value:
            key = self._read_scalar(key_node)
            self.lines[(*path, key)] = key_node.start_mark.line + 1
            result[key] = self.read(value_node, (*path, key))
        return result

    def _check_unique(self, node: yaml.MappingNode) -> None:
        lines: dict[str, int] = {}
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            first = lines.setdefault(str(key_node.value), line)
            if first != line:
                raise ConfigurationError(
                    f"{self._source}, line {line}: the key {key_node.value!r} "
                    f"stands here again. Expected: once, as in line {first}."
                )

    def _read_scalar(self, node: yaml.Node) -> Any:
        text = _VARIABLE.sub(
            lambda match: self._value_of(match, node), str(node.value)
        )
        if text != node.value and getattr(node, "style", None) is None:
            # What the variable holds may be a number or a switch.
            tag = self._loader.resolve(yaml.ScalarNode, text, (True, False))
            node = yaml.ScalarNode(tag, text)
        elif text != node.value:
            return text
        return self._loader.construct_object(node, deep=True)

    def _value_of(self, match: re.Match, node: yaml.Node) -> str:
        name, default = match[1], match[2]
        value = os.environ.get(name, default)
        if value is None:
            raise ConfigurationError(
                f"{self._source}, line {node.start_mark.line + 1}: the "
                f"environment variable {name} is not set. Expected: a value, "
                f"or a default as in ${{{name}:-value}}."
            )
        return value
