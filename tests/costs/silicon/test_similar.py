"""Cards that nobody measured, from a measured one of the same chip."""

import numpy as np
import pytest
from msgspec.structs import replace

from evaluation.similar_cards import errors
from llmsim.config.errors import InputError
from llmsim.core import Provenance
from llmsim.costs import CompiledCosts, compile_costs
from llmsim.costs.catalog import look
from llmsim.costs.compile import build
from llmsim.costs.hardware_limits import peak_rates_of
from llmsim.model import hardware_names, load_hardware
from tests.costs.builders import needs_database, request, split_grid

pytestmark = needs_database

UNMEASURED = tuple(
    name
    for name in hardware_names()
    if (sheet := load_hardware(name)) is not None and sheet.similar_to is not None
)


@pytest.mark.parametrize("hardware", UNMEASURED)
def test_all_times_are_marked_and_none_beats_the_data_sheet(hardware: str) -> None:
    asked = request(hardware=hardware)
    costs, peak_rates = compile_costs(asked), peak_rates_of(asked)
    sheet = load_hardware(hardware)
    assert peak_rates is not None and sheet is not None and sheet.similar_to is not None
    assert f"scaled from {sheet.similar_to} by data sheets" in costs.attention.source
    operators = {op.name: op for op in asked.operators}
    for op in costs.ops:
        assert (op.provenance[1:] >= Provenance.SCALED).all() and (op.ps[1:] > 0).all(), op.name
        if op.name in operators:
            counts = np.arange(len(op.ps), dtype=np.float64)
            least = peak_rates.operator_us(operators[op.name], counts, "bf16") * 1e6
            assert (op.ps >= np.floor(least)).all(), op.name


@pytest.mark.parametrize(("card", "neighbour"), [("H200", "H100"), ("B300", "B200")])
def test_a_card_of_the_same_chip_is_nearer_than_the_data_sheet(card: str, neighbour: str) -> None:
    near, sheet = errors(card, neighbour)
    assert np.percentile(np.abs(near), 50) < 0.08 and np.percentile(np.abs(near), 90) < 0.15
    for q in (50, 90):
        assert np.percentile(np.abs(near), q) < np.percentile(np.abs(sheet), q)


def of_sheet(**changes: object) -> CompiledCosts:
    asked = request(hardware="H100")
    assert asked.hardware is not None
    asked = replace(asked, hardware=replace(asked.hardware, silicon_system=None, **changes))
    return build(asked, look(asked))


def test_a_card_of_its_own_kind_gives_its_own_times() -> None:
    own, scaled = compile_costs(request(hardware="H100")), of_sheet(similar_to="H100")
    mine = {op.name: op.ps for op in own.ops}
    for op in scaled.ops:
        assert (np.abs(op.ps - mine[op.name]) <= 1).all(), op.name
    mine_ps, scaled_ps = (split_grid(one.attention).decode_ps for one in (own, scaled))
    assert (np.abs(scaled_ps - mine_ps) <= 1).all()


def test_faster_memory_makes_decodes_faster_and_leaves_prompts() -> None:
    bandwidth = 2 * 3_350_000_000_000
    slow, fast = (
        of_sheet(similar_to="H100"),
        of_sheet(similar_to="H100", memory_bandwidth_bytes_per_s=bandwidth),
    )
    at = [{op.name: op.ps for op in one.ops}["gate_up_proj"] for one in (slow, fast)]
    assert at[1][1] < 0.6 * at[0][1] and at[1][2048] > 0.95 * at[0][2048]


@pytest.mark.parametrize("name", ["TPU-v6e", "H1000", "my.json"])
def test_a_neighbour_must_be_a_measured_card(name: str) -> None:
    with pytest.raises(
        InputError, match="which is no device that the silicon database has; it may be"
    ):
        of_sheet(similar_to=name)


@pytest.mark.parametrize(("hardware", "known"), [("RTX4090", True), ("A30", False)])
def test_the_neighbours_missing_rate_is_not_said_of_a_card_that_has_its_own(
    hardware: str, known: bool
) -> None:
    """The L40S's streaming rate of one thread block was never measured; the RTX 4090's was."""
    costs = compile_costs(request(hardware=hardware))
    said = [note for note in costs.notes if "unequal lengths" in note]
    assert (costs.attention.skew_ps_per_token_q20 > 0) is known
    assert len(said) == (0 if known else 1)
