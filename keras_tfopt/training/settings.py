"""How a model splits and gathers batches, and what became of its plan."""

import dataclasses
from typing import Any

from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.plan import Offload
from keras_tfopt.plan import PlanEvent
from keras_tfopt.plan import Remat
from keras_tfopt.training.failure import Listener

# Fields of a plan that are arguments of a model.
_ARGUMENTS = (
    "accumulation_steps",
    "microbatch_size",
    "gather_steps",
    "remat",
    "offload",
)


class AccumulationSettings:
    """The accumulation settings of one model.

    Args:
        accumulation_steps: As for `AccumModel`.
        microbatch_size: As for `AccumModel`.
        gather_steps: As for `AccumModel`.
        remat: As for `AccumModel`.
        offload: As for `AccumModel`.

    Attributes:
        plan: The `ExecutionPlan` in force.
        plan_events: Tuple of `PlanEvent`, oldest first.
        listeners: List of `Listener` that are told of each.
    """

    def __init__(
        self,
        accumulation_steps: int | None = None,
        microbatch_size: int | None = None,
        gather_steps: int | None = None,
        remat: Remat = None,
        offload: Offload = None,
    ) -> None:
        self.plan = ExecutionPlan(
            accumulation_steps,
            microbatch_size,
            gather_steps=gather_steps,
            remat=remat,
            offload=offload,
        )
        self.plan_events: tuple[PlanEvent, ...] = ()
        self.listeners: list[Listener] = []

    def change_plan(
        self, plan: ExecutionPlan, reason: str, step: int, seconds: float = 0.0
    ) -> None:
        """Puts a plan in force and records the decision."""
        event = PlanEvent(step, reason, self.plan, plan, seconds)
        self.plan_events += (event,)
        self.plan = plan
        for listener in self.listeners:
            listener(event)

    def get_state(self) -> dict[str, Any]:
        """Returns the plan and its events, as JSON takes them."""
        events = [dataclasses.asdict(event) for event in self.plan_events]
        return {"plan": dataclasses.asdict(self.plan), "events": events}

    def set_state(self, state: dict[str, Any]) -> None:
        """Puts plan and events of another run in force."""

        def plan(fields: dict[str, Any]) -> ExecutionPlan:
            return ExecutionPlan(**fields)

        self.plan = plan(state["plan"])
        self.plan_events = tuple(
            PlanEvent(**{**e, "old": plan(e["old"]), "new": plan(e["new"])})
            for e in state["events"]
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the settings that are set, as JSON takes them."""
        values = {name: getattr(self.plan, name) for name in _ARGUMENTS}
        return {name: value for name, value in values.items() if value}

    @classmethod
    def pop_config(cls, config: dict) -> "AccumulationSettings | None":
        """Takes the settings out of a config; `None` if it has none."""
        found = {
            name: config.pop(name) for name in _ARGUMENTS if name in config
        }
        return cls(**found) if found else None


class CompileConfig(dict):
    """Arguments of `compile` that carry the settings of their model.

    `clone_model` makes a functional model anew from its graph alone, and then
    compiles it from the config of the original. A model of another class takes
    it for the dict that it is.

    Args:
        config: Dict. Arguments of `compile`.
        settings: `AccumulationSettings` of the model.
    """

    def __init__(self, config: dict, settings: AccumulationSettings) -> None:
        super().__init__(config)
        self.settings = AccumulationSettings(**settings.get_config())
