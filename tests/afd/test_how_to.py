"""The how-to page of attention-FFN disaggregation prints the figures of its own file."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import llmsim

PAGE = Path(__file__).parents[2] / "docs/how-to/serving/attention_ffn_disaggregation.md"
TEXT = PAGE.read_text(encoding="utf-8")
ROW = re.compile(r"\| (\d+), (\d+) \| (\d+) \| (\w+) \| (.+) \|")
ROWS = ROW.findall(TEXT)
LOAD = re.search(r"--cluster-config afd.json --dataset (\S+)", TEXT)


def deployment(attention: int, ffn: int, lanes: int, dispatch: str) -> dict[str, Any]:
    """The page's cluster file with other sizes."""
    found = re.search(r"```json\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    fields: dict[str, Any] = json.loads(found[1])
    first, experts = fields["nodes"][0]["instances"]
    first |= {"afd_micro_batches": lanes, "afd_dispatch": dispatch}
    experts |= {"num_npus": ffn, "ffn_ep_size": ffn}
    fields["nodes"][0]["instances"] = [first] * attention + [experts]
    return fields


def test_the_page_has_a_table() -> None:
    assert len(ROWS) == 8
    assert LOAD is not None


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row[:4]))
def test_row_of_the_table(row: tuple[str, ...]) -> None:
    pytest.importorskip("aiconfigurator_core", reason="the page shows times of the database")
    attention, ffn, lanes, dispatch, figures = row
    fields = deployment(int(attention), int(ffn), int(lanes), dispatch)
    assert LOAD is not None
    summary = llmsim.run(fields, LOAD[1]).summary
    [sides] = summary["afd"]
    shown = (
        f"{summary['output_throughput']:,.0f}",
        f"{summary['mean_tpot_ms']:.1f}",
        f"{sides['attention_idle']:.1%}".replace("%", " %"),
        f"{sides['ffn_idle']:.1%}".replace("%", " %"),
        f"{summary['cost']['per_million_output_tokens']:.2f}",
    )
    assert " | ".join(shown) == figures
