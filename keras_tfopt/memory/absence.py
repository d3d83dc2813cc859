"""One line in the log for each value that cannot be read."""

import functools
import logging

_logger = logging.getLogger("keras_tfopt")


@functools.cache
def report_absence(what: str, reason: str) -> None:
    """Logs once per process that a value is absent, and why.

    Args:
        what: String. Name of the value, such as `"driver readings of GPU:0"`.
        reason: String. Why there is none.
    """
    _logger.info("No %s: %s", what, reason)
