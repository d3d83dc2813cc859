"""Holds the architecture: who may import whom, and how long files may be."""

import ast
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "keras_tfopt"
MAX_LINES = 400

# Ground first. A file imports only from rooms on floors below its own, or from
# its own room. `__init__` stands for the package's public names.
FLOORS = [
    {
        "_compat",
        "_compat_fit",
        "_compat_memory",
        "_compat_placement",
        "_compat_remat",
        "_version",
        "errors",
        "devices",
        "plan",
        "rows",
        "turns",
    },
    {
        "accumulation",
        "checkpoint",
        "compilation",
        "data",
        "distribution",
        "launcher",
        "memory",
    },
    {"training"},
    {"telemetry"},
    {"callbacks"},
    {"config"},
    {"__init__"},
    {"benchmark", "doctor"},
    {"cli"},
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
PRIVATE_MODULES = ("keras.src", "tensorflow.python", "tf.python")


def package_files() -> list[str]:
    """Returns the package's files, relative to it."""
    return sorted(
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")
    )


def room_of(path: str) -> str:
    """Returns the folder or file right under the package."""
    return path.removesuffix(".py").partition("/")[0]


def imported_modules(tree: ast.AST) -> list[str]:
    """Returns every name that a file may import as a module."""
    modules = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            modules += [f"{origin}.{alias.name}" for alias in node.names]
    return modules


def attribute_chains(tree: ast.AST) -> list[str]:
    """Returns every dotted expression, such as `tf.python.eager`."""
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
    ]


def is_inside(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def house_violations(path: str, source: str) -> list[str]:
    """Returns what a file of the package does against the architecture.

    `path` is relative to the package, with forward slashes.
    """
    tree = ast.parse(source)
    violations = []
    lines = len(source.splitlines())
    if lines > MAX_LINES:
        violations.append(f"has {lines} lines, more than {MAX_LINES}")
    room = room_of(path)
    if room not in FLOOR_OF:
        violations.append(f"stands in the room {room}, which is on no floor")
        return violations
    modules = imported_modules(tree)
    for module in modules:
        if module.startswith("."):
            violations.append(f"imports {module} relatively")
        elif is_inside(module, "keras_tfopt"):
            violations += import_violations(path, module)
    if not path.startswith("_compat"):
        for name in modules + attribute_chains(tree):
            if any(is_inside(name, private) for private in PRIVATE_MODULES):
                violations.append(f"uses the private name {name}")
    return violations


def import_violations(path: str, module: str) -> list[str]:
    """Returns what is wrong with one import inside the package."""
    room = room_of(path)
    imported = module.split(".")[1:2]
    # `from keras_tfopt import AccumModel` names no room but the public names.
    other = imported[0] if imported and imported[0] in FLOOR_OF else "__init__"
    if other == room:
        if room == "callbacks" and path != "callbacks/__init__.py":
            return [f"is a callback and imports another one, {module}"]
        return []
    if FLOOR_OF[other] >= FLOOR_OF[room]:
        return [f"imports {module}, which is not on a floor below {room}"]
    return []


@pytest.mark.parametrize("path", package_files())
def test_file_keeps_to_the_house(path):
    source = (PACKAGE / path).read_text(encoding="utf-8")
    assert house_violations(path, source) == []


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        (
            "memory/planner.py",
            "from keras_tfopt.training.guarded_step import GuardedStep",
            "not on a floor below memory",
        ),
        (
            "memory/planner.py",
            "from keras_tfopt import accumulation",
            "not on a floor below memory",
        ),
        (
            "plan.py",
            "def f():\n    import keras_tfopt._compat as c",
            "not on a floor below plan",
        ),
        (
            "training/model.py",
            "from keras_tfopt import AccumModel",
            "not on a floor below training",
        ),
        ("cli.py", "from . import benchmark", "relatively"),
        ("__init__.py", "from keras_tfopt import benchmark", "not on a floor"),
        ("helpers/a.py", "", "on no floor"),
        (
            "callbacks/a.py",
            "from keras_tfopt.callbacks.b import B",
            "imports another one",
        ),
        ("plan.py", "from keras.src import ops", "private name keras.src.ops"),
        ("plan.py", "import tensorflow.python.eager", "private name"),
        ("plan.py", "from tensorflow import python", "private name"),
        ("plan.py", "import keras\nkeras.src.ops", "private name keras.src"),
        ("plan.py", "f(tf.python.eager.context)", "private name tf.python"),
        ("plan.py", "\n" * (MAX_LINES + 1), f"more than {MAX_LINES}"),
    ],
)
def test_violation_is_found(path, source, expected):
    violations = house_violations(path, source)
    assert violations
    assert all(expected in violation for violation in violations)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("_compat.py", "from keras.src import ops"),
        ("__init__.py", "from keras_tfopt.training.model import AccumModel"),
        ("accumulation/split.py", "from keras_tfopt import _compat, plan"),
        ("accumulation/split.py", "import keras_tfopt.accumulation.merge"),
        ("benchmark/demo.py", "from keras_tfopt import AccumModel"),
        ("callbacks/__init__.py", "from keras_tfopt.callbacks.a import A"),
        ("callbacks/a.py", "from keras_tfopt.training import remedies"),
        ("plan.py", "import keras_tfopt_other, keras.srcery"),
        ("plan.py", "\n" * MAX_LINES),
    ],
)
def test_sound_file_passes(path, source):
    assert house_violations(path, source) == []


def test_every_room_is_on_one_floor():
    assert len(FLOOR_OF) == sum(len(rooms) for rooms in FLOORS)
