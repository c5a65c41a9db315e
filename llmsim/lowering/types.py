"""What lowering is asked for, and what it makes: groups and deployments, ready for the
native core.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from llmsim import _native
from llmsim.config import EngineArgs
from llmsim.core import GroupInfo
from llmsim.costs import AttentionCost, CompiledCosts, OpCost
from llmsim.costs.experts.routing import ExpertRouting
from llmsim.costs.source import CollectiveSource, SourceName
from llmsim.lowering.adjust.calibration import Calibration
from llmsim.lowering.energy.accounting import Accounting
from llmsim.lowering.network.base import Network, NetworkView
from llmsim.lowering.network.cluster_network import ClusterNetwork
from llmsim.lowering.network.contended.collectives import ContendedDomain
from llmsim.lowering.offload.plan import OffloadPlan
from llmsim.lowering.parallel_layout import (
    LoweredLockstep,
)
from llmsim.lowering.program import Placed
from llmsim.lowering.speculation.drafter import DraftPlan
from llmsim.model import (
    Dtypes,
    Hardware,
    Layout,
    MemoryLedger,
    ModelConfig,
    Operator,
)

if TYPE_CHECKING:
    from llmsim.lowering.switches.layouts import LayoutPlans


class LoweringOptions(Struct, frozen=True):
    """Where operator times come from; see the `--cost-source`, `--collective-costs` and
    `--profile-dir` options.
    """

    cost_source: SourceName = "auto"
    collectives: CollectiveSource = "auto"
    expert_routing: ExpertRouting = field(default_factory=ExpertRouting)
    cost_tables: tuple[Path, ...] = ()
    cost_plugin: str = ""
    predict_attention: bool = False
    profile_dirs: tuple[Path, ...] = ()
    profile_dirs_given: bool = False
    """Whether the user named any of them: then one has to be of use."""
    network: Network = "analytical"
    exact: bool = False
    """Evaluate every rank's nodes in the engine instead of the folded program."""
    tiers: bool = False
    """Whether there are pools of KV below the devices, so that groups share a network."""
    collectives_contend: bool = True
    """Whether collectives of groups that share links slow each other."""
    disabled_terms: tuple[str, ...] = ()
    """Fidelity terms that are switched off, names of `llmsim.lowering.adjust.ablation_terms.TERMS`.
    """
    calibration: Calibration | None = None


class LoweredGroup(Struct, frozen=True, eq=False):
    """One group, ready for the native core; `program` may be shared with groups of the same
    deployment.
    """

    info: GroupInfo
    model: ModelConfig
    layout: Layout
    dtypes: Dtypes
    operators: tuple[Operator, ...]
    ledger: MemoryLedger
    costs: CompiledCosts
    program: "_native.Program"
    placed: tuple[Placed, ...]
    """The operators of the program, in its order."""
    busy_names: tuple[tuple[str, str], ...]
    """(name, source) of everything that the group's devices are busy with, as the core numbers it.
    """
    links: NetworkView
    expanded: "_native.ExpandedConfig | None"
    """How to run every rank's nodes in the engine; None: the folded program."""
    scheduler: "_native.SchedulerConfig | None"
    """None: the group gets no requests."""
    native: "_native.GroupConfig"
    engine: EngineArgs
    hardware: Hardware | None
    """The devices' data sheet; None: nobody has one."""
    memory_bytes_per_s: int
    """Of each device's memory, as the cluster file has it."""
    offload: OffloadPlan | None = None
    """What is kept outside of the devices; None: nothing."""
    network_notes: tuple[str, ...] = ()
    linked: tuple[str, ...] = ()
    """Collectives that the engine's messages on the links price."""
    draft: DraftPlan | None = None
    """Who proposes drafts on its devices; None: nobody."""
    untimed_adapters: str = ""
    """With what the time of its LoRA adapters is not modelled; "": it is, or there are none."""
    untimed_encoder: str = ""
    """With what the time of its encoder is not modelled; "": it is."""

    @property
    def hosted(self) -> frozenset[str]:
        """Names of the operators that the node's processors run."""
        return self.offload.where.hosted if self.offload is not None else frozenset()

    @property
    def program_costs(self) -> tuple[OpCost | AttentionCost, ...]:
        """The cost of each operator of the program."""
        return tuple(one.cost for one in self.placed)


class LoweredDeployment(Struct, frozen=True, eq=False):
    """All groups; `models` are the names that traces may ask for, in order of first appearance."""

    groups: tuple[LoweredGroup, ...]
    models: tuple[str, ...]
    accounting: Accounting
    network: ClusterNetwork | None = None
    """What groups share; None where nothing moves between them."""
    kv_transfers: "_native.KvTransferConfig | None" = None
    notes: tuple[str, ...] = ()
    lockstep_groups: tuple[LoweredLockstep, ...] = ()
    contended: tuple[ContendedDomain, ...] = ()
    """Domains whose collectives or hand-overs are flows on the network."""
    layouts: "LayoutPlans | None" = None
    """Layouts of the same devices, whose initial one this is; None: the groups stay."""
    output_processing_ps: int = 0
    """What each token of an answer takes beside the engine, before its client has it."""
    unlike_published: tuple[str, ...] = ()
    """Features that no published server has whose figures the error interval is learnt from."""
    kv_offloading: "tuple[_native.OffloadingCopies, ...]" = ()
    """Of each group, how its KV comes to host memory and back by its engine's own rules."""
    networks: tuple[ClusterNetwork | None, ...] = ()
    """Of each group, `network` with the groups of its layout on it; empty without layouts."""

    def network_of(self, group: int) -> ClusterNetwork | None:
        """What the group shares with others, and who is where on it while the group is there."""
        return self.networks[group] if self.networks else self.network

    def operator(self, group: int, index: int) -> tuple[str, str]:
        """(name, source) of an operator of a group's program."""
        return self.groups[group].busy_names[index]

    @property
    def enforces_lower_bound(self) -> tuple[bool, ...]:
        """Per group, whether a step faster than light is our defect (its costs are not a user's own
        profile).
        """
        return tuple(group.costs.floor.enforce for group in self.groups)

    @property
    def granularity(self) -> int:
        """Tokens per content key that every group's block size, and what prefixes match by, are
        multiples of.
        """
        units = (group.engine.prefix_match_unit or 0 for group in self.groups)
        return math.gcd(*(group.info.block_size for group in self.groups), *units)
