"""Going back to the plan before, when a new one makes steps slower."""

from collections import deque
from collections.abc import Callable
import statistics
import time

from keras_tfopt.compilation.shapes import Shapes
from keras_tfopt.compilation.shapes import shapes_of
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.failure import Remedy
from keras_tfopt.training.failure import StepFailure
from keras_tfopt.training.failure import StepReport


class StablePlan(Remedy):
    """Keeps the last plan that proved itself, and returns to it.

    A plan is judged by the wall time from step to step, data and callbacks
    included, on batches of the shapes that the stable plan was measured on.
    The first of these times after a change holds tracing and does not count. A
    plan that a failure has shown not to work is never returned to.

    Args:
        max_slowdown: Float. Times of the stable plan's step that a new plan's
            may take.
        steps: Integer. Calls after which a plan is judged.
        clock: Callable that returns seconds. Defaults to
            `time.perf_counter`.
    """

    def __init__(
        self,
        max_slowdown: float,
        steps: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._max_slowdown = max_slowdown
        self._steps = steps
        self._clock = clock
        self._stable: ExecutionPlan | None = None
        self._stable_seconds: dict[Shapes, float] = {}
        self._failed: set[ExecutionPlan] = set()
        self._plan: ExecutionPlan | None = None
        self._times: dict[Shapes, deque[float]] = {}
        self._last: float | None = None

    @property
    def decides_alike(self) -> bool:
        """Whether workers decide so alike: each measures for itself."""
        return False

    def propose(self, failure: StepFailure) -> tuple[ExecutionPlan, str] | None:
        """Remembers what failed, and leaves the way on to others."""
        self._failed.update(failure.tried)
        self._failed.add(failure.plan)
        # The failure's time is not a step's.
        self._last = None
        return None

    def observe(self, report: StepReport) -> None:
        """Takes the time since the steps before."""
        now = self._clock()
        if report.plan != self._plan:
            self._plan, self._times = report.plan, {}
        elif self._last is not None:
            seconds = (now - self._last) / report.steps
            times = self._times.setdefault(
                shapes_of(report.batch), deque(maxlen=self._steps)
            )
            times.append(seconds)
        self._last = now

    def review(
        self, plan: ExecutionPlan, rows: int | None, shape_key: str, steps: int
    ) -> tuple[ExecutionPlan, str] | None:
        """Returns the stable plan when the present one is slower."""
        if plan != self._plan:
            return None
        judged = {
            shapes: statistics.median(times)
            for shapes, times in self._times.items()
            if len(times) == self._steps
        }
        if not judged:
            return None
        stable = self._stable
        if stable is None or stable in self._failed or plan == stable:
            self._accept(plan, judged)
            return None
        common = judged.keys() & self._stable_seconds.keys()
        if not common:
            return None
        ratio = max(judged[key] / self._stable_seconds[key] for key in common)
        if ratio <= self._max_slowdown:
            self._accept(plan, judged)
            return None
        return stable, (
            f"{self._steps} calls took {ratio:.2f} times as long as under the "
            "plan before"
        )

    def _accept(self, plan: ExecutionPlan, judged: dict[Shapes, float]) -> None:
        if plan != self._stable:
            self._stable_seconds = {}
        self._stable = plan
        self._stable_seconds.update(judged)
