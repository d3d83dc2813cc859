"""Makes the pages of callbacks and of the API from what the package exports."""

import ast
import pathlib

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File
from mkdocs.structure.files import Files

PACKAGE = pathlib.Path(__file__).parents[1] / "keras_tfopt"
# Rooms whose exports have a page in the API, beside the public names.
ROOMS = ("", "compilation", "data", "distribution", "memory")


def exports(path: pathlib.Path) -> dict[str, str]:
    """Returns the names that a file exports, and where each is defined."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                is_export = alias.asname == alias.name
                if is_export and not alias.name.startswith("_"):
                    found[alias.name] = f"{node.module}.{alias.name}"
    return dict(sorted(found.items()))


def pages() -> dict[str, dict[str, str]]:
    """Returns title and text of each page, by section of the navigation."""
    made: dict[str, dict[str, str]] = {"Callbacks": {}, "API": {}}
    for name, origin in exports(PACKAGE / "callbacks/__init__.py").items():
        made["Callbacks"][name] = f"# {name}\n\n::: {origin}\n"
    for room in ROOMS:
        title = ".".join(["keras_tfopt", room]).rstrip(".")
        names = exports(PACKAGE / room / "__init__.py")
        directives = [
            f"## {name}\n\n::: {origin}\n"
            for name, origin in names.items()
            if name != "callbacks"
        ]
        made["API"][title] = f"# {title}\n\n" + "\n".join(directives)
    return made


def on_config(config: MkDocsConfig) -> None:
    """Puts the pages into the navigation."""
    for section, made in pages().items():
        config.nav.append({section: [{t: address(t)} for t in made]})


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Adds the pages, and the pictures where the README looks for them."""
    for made in pages().values():
        for title, text in made.items():
            files.append(File.generated(config, address(title), content=text))
    for path in pathlib.Path(config.docs_dir, "images").glob("*.png"):
        name = f"docs/images/{path.name}"
        files.append(File.generated(config, name, abs_src_path=str(path)))


def address(title: str) -> str:
    """Returns the path of a page."""
    return f"reference/{title}.md"
