"""What XLA says when it refuses a function."""

from collections.abc import Collection
import dataclasses
import re

# The operation, in the forms of XLA's messages.
_OPERATION = re.compile(
    r"No registered '(\w+)'|with op (\w+) must be|: (\w+) \(No registered"
)
# The node in the graph, whose path begins with model and layer.
_NODE = re.compile(r"\{\{node ([^}]+)\}\}|node `([^`]+)`|at node (\S+) defined")
# Lines that say what is wrong, among those that say where.
_TELLING = re.compile(
    r"unsupported operations|compile-time constant|XLA compilation requires"
    r"|Input to reshape|Fail"
)
_BOILERPLATE = re.compile(
    r"^\s*(File |Detected at node|Graph execution error|The op is|Stack trace"
    r"|tf2xla conversion|\[\[)"
)
_MAX_TEXT = 200


@dataclasses.dataclass(frozen=True)
class Refusal:
    """An operation that XLA did not compile or run.

    Attributes:
        operation: String or `None`. Type of the operation, such as `AsString`.
        layer: String or `None`. Name of the layer that it belongs to.
        text: String. XLA's own words, shortened.
    """

    operation: str | None
    layer: str | None
    text: str

    def __str__(self) -> str:
        """Returns the refusal as a part of a sentence."""
        where = f" of layer '{self.layer}'" if self.layer else ""
        what = f"operation {self.operation}" if self.operation else "the step"
        return f"{what}{where}: {self.text}"


def describe_refusal(
    error: BaseException, layer_names: Collection[str]
) -> Refusal:
    """Finds operation and layer in the message of an XLA failure.

    Args:
        error: What the compiled function raised.
        layer_names: Names of the model and of its layers.

    Returns:
        `Refusal`.
    """
    text = str(error)
    operation = _first_group(_OPERATION, text)
    node = _first_group(_NODE, text)
    layer = None if node is None else layer_of(node, layer_names)
    if operation is None and node is not None:
        operation = node.rpartition("/")[-1]
    return Refusal(operation, layer, _telling_line(error))


def layer_of(node: str, layer_names: Collection[str]) -> str | None:
    """Returns the innermost layer in the path of a node.

    Args:
        node: String. Path of a node in a graph, such as `model/dense_1/Relu`.
        layer_names: Names of the model and of its layers.
    """
    parts = node.split("/")[:-1]
    # A second trace of layer `a` names it `a_1`, and so the model.
    is_first_trace = bool(parts) and parts[0] in layer_names
    for part in reversed(parts):
        names = (re.sub(r"_\d+$", "", part), part)
        for name in reversed(names) if is_first_trace else names:
            if name in layer_names:
                return name
    return None


def _first_group(pattern: re.Pattern, text: str) -> str | None:
    match = pattern.search(text)
    if match is None:
        return None
    return next(group for group in match.groups() if group)


def _telling_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line for line in lines if not _BOILERPLATE.match(line)]
    telling = [line for line in own if _TELLING.search(line)]
    line = (telling or own or lines or [type(error).__name__])[0]
    return line if len(line) <= _MAX_TEXT else f"{line[:_MAX_TEXT]}…"
