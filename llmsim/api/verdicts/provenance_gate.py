"""`--require`: a run whose times are known less well than asked for is refused, by operator and
shape.
"""

from typing import TYPE_CHECKING

from llmsim.core import FEATURES, OFFLOAD
from llmsim.costs import OpCost
from llmsim.costs.confidence import refuse_attention_below, refuse_below

if TYPE_CHECKING:
    from llmsim.core import Results
    from llmsim.lowering import LoweredDeployment


def require(level: str, lowered: "LoweredDeployment", results: "Results") -> None:
    """InputError for the first time that the run used and that is known less well than `level`."""
    for index, group in enumerate(lowered.groups):
        where = f"group {group.info.index} ({group.info.model_name} on {group.info.hardware})"
        for cost in group.program_costs:
            if isinstance(cost, OpCost):
                rows = results.table_rows[index][FEATURES.index(cost.feature)]
                if len(cost.ps) == len(rows):
                    refuse_below(level, where, cost, rows)
        if group.draft is not None and level:
            _require_drafter(level, where, results, index)
        names = {OFFLOAD, *(attention.name for attention in group.costs.attentions)}
        for share in results.time_shares:
            if share.group == group.info.index and share.operator in names:
                refuse_attention_below(
                    level, where, share.operator, share.source, share.ps_by_provenance
                )


def _require_drafter(level: str, where: str, results: "Results", group: int) -> None:
    """The drafter's operators by the provenance of the time that they took."""
    for share in results.time_shares:
        if share.group == group and share.operator.startswith("draft "):
            refuse_attention_below(
                level, where, share.operator, share.source, share.ps_by_provenance
            )
