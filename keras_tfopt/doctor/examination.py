"""All that is looked at, in the order of a report."""

import os

import rich.table
import rich.text

from keras_tfopt.doctor.cluster import examine_cluster
from keras_tfopt.doctor.devices import examine_devices
from keras_tfopt.doctor.disk import examine_disk
from keras_tfopt.doctor.driver import examine_driver
from keras_tfopt.doctor.environment import examine_environment
from keras_tfopt.doctor.finding import ERROR
from keras_tfopt.doctor.finding import INFO
from keras_tfopt.doctor.finding import OK
from keras_tfopt.doctor.finding import WARNING
from keras_tfopt.doctor.finding import Finding
from keras_tfopt.doctor.host import examine_host
from keras_tfopt.doctor.versions import examine_versions

_STYLES = {OK: "green", INFO: "", WARNING: "yellow", ERROR: "bold red"}


def examine(path: str | os.PathLike = ".") -> list[Finding]:
    """Looks at everything that a training depends on.

    No device is started, no file stays, and nothing is changed.

    Example:

    ```python
    from keras_tfopt.doctor import examine

    assert any(finding.topic == "versions" for finding in examine())
    ```

    Args:
        path: Path of the folder for backups and logs. Defaults to the working
            directory.

    Returns:
        List of `Finding`.
    """
    return [
        *examine_versions(),
        *examine_devices(),
        *examine_driver(),
        *examine_environment(),
        *examine_cluster(),
        *examine_host(),
        *examine_disk(path),
    ]


def findings_table(findings: list[Finding]) -> rich.table.Table:
    """Returns findings as a table, each with what to do.

    Args:
        findings: List of `Finding`.
    """
    table = rich.table.Table()
    for heading in ("topic", "", "found", "what to do"):
        table.add_column(heading)
    for finding in findings:
        table.add_row(
            finding.topic,
            finding.severity,
            # Square brackets, as in the name of an extra, are no markup.
            rich.text.Text(finding.text),
            rich.text.Text(finding.advice),
            style=_STYLES[finding.severity],
        )
    return table
