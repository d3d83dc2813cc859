"""What a release says of itself agrees with what it is."""

from importlib import metadata
import pathlib
import re
import tomllib

import pytest

from keras_tfopt._version import __version__

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# How those who name no identifier write a licence.
NAMES = {"PSF": "Python Software Foundation"}


def requirements():
    """Returns the names of all packages that any extra needs."""
    extras = PROJECT["optional-dependencies"].values()
    lists = [PROJECT["dependencies"], *extras]
    names = {re.match(r"[\w.-]+", line)[0] for part in lists for line in part}
    return sorted(names - {"keras-tfopt"})


def documented():
    """Returns the licence that the README gives each package."""
    readme = (ROOT / "README.md").read_text()
    table = readme.partition("## Dependencies")[2]
    found = {}
    for line in re.findall(r"^\| \[.*", table, re.M):
        packages, licence = line.split("|")[1:3]
        for name in re.findall(r"\[([\w.-]+)\]", packages):
            found[name] = licence.strip()
    return found


def test_each_dependency_is_listed():
    assert sorted(documented()) == requirements()


@pytest.mark.parametrize("name", requirements())
def test_licence_is_the_one_of_the_package(name):
    try:
        told = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    fields = ("License-Expression", "License", "Classifier")
    text = " ".join(
        value for field in fields for value in told.get_all(field) or ()
    )
    families = re.findall(r"(\w+)(?:-[\w.]+)*", documented()[name])
    assert any(NAMES.get(family, family) in text for family in families), text


def test_changelog_begins_with_this_version():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    newest = re.search(r"^## \[(.+?)\]", changelog, re.M)[1]
    assert newest == __version__.partition(".dev")[0]


def test_version_stands_in_one_place():
    assert "version" in PROJECT["dynamic"]
    assert "version" not in PROJECT
