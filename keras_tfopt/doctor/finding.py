"""One thing that was found, and what to do about it."""

import dataclasses

OK, INFO, WARNING, ERROR = "ok", "info", "warning", "error"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        topic: String. What it is about, such as `"versions"`.
        severity: String. `"ok"`, `"info"`, `"warning"`, which costs something,
            or `"error"`, which keeps training from running.
        text: String. What was found.
        advice: String. What to do. Defaults to `""`, nothing.
    """

    topic: str
    severity: str
    text: str
    advice: str = ""
