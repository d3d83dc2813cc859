"""Runs every example of the docstrings and of the README."""

import importlib
import inspect
import pathlib
import pkgutil
import re
import textwrap

import pytest

import keras_tfopt

README = pathlib.Path(__file__).parents[1] / "README.md"
CODE_BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```$", re.DOTALL | re.M)


def code_blocks(text: str) -> list[str]:
    """Returns the Python code blocks of a text."""
    return [textwrap.dedent(code) for _, code in CODE_BLOCK.findall(text)]


def public_members(owner, module_name):
    """Yields the public classes and functions defined in a module."""
    for name, member in sorted(vars(owner).items()):
        if isinstance(member, (classmethod, staticmethod)):
            member = member.__func__
        if isinstance(member, property):
            member = member.fget
        is_code = inspect.isclass(member) or inspect.isfunction(member)
        is_own = getattr(member, "__module__", None) == module_name
        if name.startswith("_") or not is_code or not is_own:
            continue
        yield member
        if inspect.isclass(member):
            yield from public_members(member, module_name)


def documented_modules():
    """Yields every module of the package."""
    yield keras_tfopt
    prefix = f"{keras_tfopt.__name__}."
    for info in pkgutil.walk_packages(keras_tfopt.__path__, prefix):
        yield importlib.import_module(info.name)


def docstring_examples():
    """Yields each example of a docstring with a name for its test."""
    for module in documented_modules():
        members = public_members(module, module.__name__)
        for documented in [module, *members]:
            name = getattr(documented, "__qualname__", documented.__name__)
            for number, code in enumerate(
                code_blocks(documented.__doc__ or "")
            ):
                yield pytest.param(code, id=f"{name}-{number}")


def readme_examples():
    """Yields the examples of the README, each of which goes on from others."""
    blocks = code_blocks(README.read_text(encoding="utf-8"))
    yield pytest.param("\n".join(blocks), id="README")


@pytest.mark.parametrize("code", [*docstring_examples(), *readme_examples()])
def test_example_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "<example>", "exec"), {"__name__": "example"})


def test_examples_are_collected():
    names = [parameters.id for parameters in docstring_examples()]
    assert "ExecutionPlan-0" in names
    assert "read_allocator_stats-0" in names
    assert list(readme_examples())


def test_code_blocks_are_found_at_any_depth():
    text = """
    Example:

    ```python
    if True:
        a = 1
    ```

    ```
    not python
    ```
"""
    assert code_blocks(text) == ["if True:\n    a = 1\n"]
    assert code_blocks("```python\nb = 2\n```\n") == ["b = 2\n"]
