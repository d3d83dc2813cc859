"""How a model splits and gathers batches, and what became of its plan."""

from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.plan import PlanEvent
from keras_tfopt.plan import check_positive_integer


class AccumulationSettings:
    """The accumulation settings of one model.

    Args:
        accumulation_steps: As for `AccumModel`.
        microbatch_size: As for `AccumModel`.
        gather_steps: As for `AccumModel`.

    Attributes:
        plan: The `ExecutionPlan` in force.
        plan_events: Tuple of `PlanEvent`, oldest first.
        gather_steps: Integer or `None`.
    """

    def __init__(
        self,
        accumulation_steps: int | None = None,
        microbatch_size: int | None = None,
        gather_steps: int | None = None,
    ) -> None:
        check_positive_integer("gather_steps", gather_steps)
        self.plan = ExecutionPlan(accumulation_steps, microbatch_size)
        self.plan_events: tuple[PlanEvent, ...] = ()
        self.gather_steps = gather_steps

    def change_plan(
        self, plan: ExecutionPlan, reason: str, step: int, seconds: float = 0.0
    ) -> None:
        """Puts a plan in force and records the decision."""
        event = PlanEvent(step, reason, self.plan, plan, seconds)
        self.plan_events += (event,)
        self.plan = plan

    def get_config(self) -> dict[str, int]:
        """Returns the settings that are set, as JSON takes them."""
        settings = {
            "accumulation_steps": self.plan.accumulation_steps,
            "microbatch_size": self.plan.microbatch_size,
            "gather_steps": self.gather_steps,
        }
        return {key: value for key, value in settings.items() if value}

    @classmethod
    def pop_config(cls, config: dict) -> "AccumulationSettings | None":
        """Takes the settings out of a config; `None` if it has none."""
        names = ("accumulation_steps", "microbatch_size", "gather_steps")
        found = {name: config.pop(name) for name in names if name in config}
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
        self.settings = AccumulationSettings(
            settings.plan.accumulation_steps,
            settings.plan.microbatch_size,
            settings.gather_steps,
        )
