"""What is asked of a search, and what a deployment costs."""

from collections.abc import Mapping
from dataclasses import dataclass

from llmsim.sizing.load import Load
from llmsim.sizing.plan import Option, Plan
from llmsim.sizing.targets import Targets


@dataclass(frozen=True)
class Question:
    """What is asked: which deployment of a model serves a load within targets."""

    model: str
    devices: tuple[str, ...]
    load: Load
    targets: Targets
    architectures: tuple[str, ...] = ("colocated", "pd")
    max_devices: int = 512
    devices_per_node: int = 8
    server: tuple[Option, ...] = ()
    """Which engine serves (`Plan.server`)."""


@dataclass(frozen=True)
class Costs:
    """What is minimised: USD per hour where every device asked about has a price, else devices."""

    prices: Mapping[str, float | None]
    """USD per hour of each device asked about; None: nobody states it."""

    def __call__(self, plan: Plan) -> float:
        """The cost of a deployment."""
        each = self.prices.get(plan.device)
        all_have_one = None not in self.prices.values()
        return float(plan.devices) if each is None or not all_have_one else each * plan.devices


def role_targets(targets: Targets, role: str) -> Targets:
    """Prefill instances decide TTFT, decode instances TPOT."""
    if role == "prefill":
        return targets.only("ttft")
    return targets.only("tpot", "e2el") if role == "decode" else targets
