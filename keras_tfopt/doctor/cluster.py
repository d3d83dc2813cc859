"""The cluster that TF_CONFIG describes."""

from collections.abc import Iterator
import os

from keras_tfopt.distribution.cluster import parse_tf_config
from keras_tfopt.doctor.finding import ERROR
from keras_tfopt.doctor.finding import OK
from keras_tfopt.doctor.finding import Finding

TOPIC = "cluster"


def examine_cluster() -> Iterator[Finding]:
    """Yields what TF_CONFIG says, if it is set."""
    yield from examine_tf_config(os.environ.get("TF_CONFIG"))


def examine_tf_config(text: str | None) -> Iterator[Finding]:
    """Yields what is right or wrong with a TF_CONFIG.

    Args:
        text: String or `None`.
    """
    try:
        cluster = parse_tf_config(text)
    except ValueError as error:
        advice = "Set it by `keras-tfopt launch`, or correct the field."
        yield Finding(TOPIC, ERROR, str(error), advice)
        return
    if cluster is None:
        yield Finding(TOPIC, OK, "one process; TF_CONFIG is not set")
        return
    yield Finding(
        TOPIC,
        OK,
        f"{cluster.task_type} {cluster.task_index} of "
        f"{len(cluster.workers)} workers",
    )
