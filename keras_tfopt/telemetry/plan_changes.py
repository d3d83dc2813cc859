"""The reasons of plan events, as few words as a label may have."""

import re

from keras_tfopt.plan import PlanEvent

# The text of a reason is for people; these are the ways that it may begin.
_KINDS = {
    "out_of_memory": r"out of memory",
    "regrow": r"\d+ steps without a failure",
    "planned": r"planned",
    "rollback": r"\d+ calls took",
    "schedule": r"accumulation schedule",
    "xla_refused": r"failed under",
    "xla": r"XLA is|XLA was|a step takes|no trial of XLA|as measured before"
    r"|batches that `gather_steps` gathers|the model runs eagerly"
    r"|layer '.*' declares that XLA|rows are not padded",
}


def kind_of(event: PlanEvent) -> str:
    """Returns which of the known reasons an event has, or `"other"`.

    Args:
        event: `PlanEvent`.
    """
    for kind, pattern in _KINDS.items():
        if re.match(pattern, event.reason):
            return kind
    return "other"
