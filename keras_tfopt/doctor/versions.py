"""Versions of what a training runs on."""

from collections.abc import Callable
from collections.abc import Iterator
from importlib import metadata
import platform

from packaging.requirements import Requirement

from keras_tfopt._version import __version__
from keras_tfopt.doctor.finding import ERROR
from keras_tfopt.doctor.finding import INFO
from keras_tfopt.doctor.finding import OK
from keras_tfopt.doctor.finding import Finding

TOPIC = "versions"
_DISTRIBUTION = "keras-tfopt"
# More than one of them overwrite each other's files.
_TENSORFLOWS = (
    "tensorflow",
    "tensorflow-cpu",
    "tf-nightly",
    "intel-tensorflow",
)


def examine_versions() -> Iterator[Finding]:
    """Yields what is installed, and what does not go together."""
    yield Finding(
        TOPIC,
        OK,
        f"keras_tfopt {__version__}, Python {platform.python_version()} on "
        f"{platform.platform()}",
    )
    try:
        requirements = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        yield Finding(
            TOPIC,
            INFO,
            "keras_tfopt is not installed, only found on the path",
            "Install it with pip, so that versions can be compared.",
        )
        requirements = []
    yield from compare_versions(requirements, installed_version)
    several = [name for name in _TENSORFLOWS if installed_version(name)]
    if len(several) > 1:
        yield Finding(
            TOPIC,
            ERROR,
            f"several TensorFlows are installed: {', '.join(several)}",
            f"Uninstall all of them, then install {several[0]} alone.",
        )


def installed_version(name: str) -> str | None:
    """Returns the version of a distribution, or `None`."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def compare_versions(
    requirements: list[str], version_of: Callable[[str], str | None]
) -> Iterator[Finding]:
    """Yields a finding for each requirement.

    Args:
        requirements: List of strings, as in a package's metadata.
        version_of: Callable from a name to a version or `None`.
    """
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate():
            continue
        version = version_of(requirement.name)
        name = f"{requirement.name} {version or 'is not installed'}"
        if version and requirement.specifier.contains(version, True):
            yield Finding(TOPIC, OK, name)
            continue
        yield Finding(
            TOPIC,
            ERROR,
            f"{name}; expected {requirement.specifier}",
            f"pip install '{requirement.name}{requirement.specifier}'",
        )
