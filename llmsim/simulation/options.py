"""How to run a workload on a lowered deployment."""

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct, field

from llmsim.core import (
    PS_PER_S,
    BackendUse,
    Clients,
)
from llmsim.lowering.kv.tiers import LoweredTiers
from llmsim.routing import RouterSpec
from llmsim.scheduling.policies import PolicySpecs

StepTimer = Callable[[Sequence[list[list[int]]], int, Sequence[tuple[int, int, int]]], list[int]]
"""(items of each member, number of the step, drafts and passes of each member's drafter) -> by how
many ps each stage of each member is done later than in the step's graph.
"""


class StepTimes(Protocol):
    """Times the steps of a run (`llmsim.rounds.outside.OutsideTimes`)."""

    def of(self, group: int) -> StepTimer:
        """The callable that the core asks for the steps of a group, and of those that run with it:
        (items of each member, number of the step) -> ps beyond each member's graph.
        """
        ...

    def of_layout(self, layout: int) -> "StepTimes":
        """Times the steps of a layout, whose groups have its own numbers."""
        ...

    @property
    def note(self) -> str:
        """A sentence about the run."""
        ...

    @property
    def use(self) -> BackendUse:
        """What the program did."""
        ...


class SimulationOptions(Struct, frozen=True):
    """How to run; `series_interval_ps` 0 records no series, nor does `record_series` False (power
    has its own).
    """

    router: RouterSpec = field(default_factory=RouterSpec)
    decode_router: RouterSpec = field(default_factory=RouterSpec)
    """Chooses where a disaggregated request is decoded."""
    session_affinity: bool = True
    """Later calls of sessions with hidden rounds go where the first one went, whatever the routers
    choose for others.
    """
    seed: int = 0
    series_interval_ps: int = PS_PER_S
    record_series: bool = True
    step_times: "StepTimes | None" = None
    """Another program that times the steps; None: none does."""
    record_steps: bool = False
    record_sources: bool = True
    """Keep the busy time of every operator by source (`Results.time_shares`)."""
    record_row_waits: bool = True
    """Tell what steps wait for rows between attention and FFN from other waiting, for which each is
    timed twice.
    """
    record_rounds: bool = False
    """Keep the schedules of all groups, so that graphs can be made of every step."""
    record_transfers: bool = False
    """Keep every transfer of the network that groups share (`llmsim.columns.TransferColumns`)."""
    policies: PolicySpecs = field(default_factory=PolicySpecs)
    tiers: LoweredTiers | None = None
    """Pools of KV below the devices, on the deployment's network."""
    check_every_step: bool = False
    """Recount all pools of KV at every step (invariant 4) instead of at the end."""
    clients: Clients | None = None
    """None: an open loop."""
    horizon_ps: int | None = None
    """The run ends then, whatever is left to do; None: when nothing is left."""
