"""Which collectives measured tables price, and which are left to the links: by the ranks that they
are among.
"""

import pytest
from builders import needs_database, request
from msgspec.structs import replace

from llmsim.costs.catalog import look
from llmsim.costs.collectives import collective_pricer
from llmsim.model import Collective, Layout

pytestmark = needs_database


@pytest.mark.parametrize("spans_nodes", [False, True])
@pytest.mark.parametrize(
    ("among", "measured"),
    [("tp", (True, True)), ("members", (True, False)), ("stages", (False, False))],
)
def test_nothing_measured_spans_nodes_or_stages(
    among: str, measured: tuple[bool, bool], spans_nodes: bool
) -> None:
    """Ranks of a group share a node even where data-parallel ranks do not."""
    asked = request(hardware="H100", tp=2, spans_nodes=spans_nodes)
    layout = replace(Layout(2), dp=2)
    asked = replace(asked, layout=layout)
    reduction = next(
        op for op in asked.operators if isinstance(op, Collective) and op.collective == "all_reduce"
    )
    price = collective_pricer(asked, look(asked))
    curve = price(replace(reduction, among=among))  # type: ignore[arg-type]
    assert (curve is not None) == measured[spans_nodes]
    if curve is not None:
        assert curve.ps[-1] > curve.ps[1] > 0


@pytest.mark.parametrize("kind", ["all_to_all", "broadcast"])
def test_no_table_knows_these_kernels(kind: str) -> None:
    asked = request(hardware="H100", tp=2)
    reduction = next(
        op for op in asked.operators if isinstance(op, Collective) and op.collective == "all_reduce"
    )
    assert collective_pricer(asked, look(asked))(replace(reduction, collective=kind)) is None  # type: ignore[arg-type]
