"""Bundles of models that keep states, and of experts beside their router: what a run looks up
where.
"""

from pathlib import Path

import numpy as np
import pytest

from llmsim.core import Provenance
from llmsim.costs import CompiledCosts, compile_costs
from llmsim.costs.sources.bundle.files import variant_of
from llmsim.model import Dtypes, Layout, load_model, operators
from tests.costs.builders import attention_rows, request, write_csv

NAME = "Qwen/Qwen3-Next-80B-A3B-Instruct"
APART = (
    "moe_gate",
    "shared_expert_up_proj",
    "shared_expert_act_fn",
    "shared_expert_down_proj",
    "shared_expert_gate",
)


def compiled(root: Path, left_out: tuple[str, ...] = ()) -> CompiledCosts:
    """Scans of 100 + 2 T us, updates of 30 + 5 n, all else 10 + T; without the rows `left_out`."""
    ops = [
        op
        for op in operators(load_model(NAME), Layout(1, 1), Dtypes())
        if op.kind not in ("collective", "attention")
    ]
    folder = root / "MyCard" / NAME / "bf16" / "tp1"
    dense = [
        (name, tokens, 100 + 2 * tokens if name == "linear_attention" else 10 + tokens)
        for name in dict.fromkeys(
            op.name for op in ops if op.feature == "tokens" and op.kind != "moe"
        )
        for tokens in (1, 16, 2048)
        if name not in left_out
    ]
    heads = [
        (name, count, 30 + 5 * count)
        for name in ("lm_head", "sampler", "linear_state")
        for count in (1, 128)
        if name not in left_out
    ]
    write_csv(folder / "dense.csv", "layer,tokens,time_us", dense)
    write_csv(folder / "per_sequence.csv", "layer,sequences,time_us", heads)
    write_csv(
        folder / "attention.csv",
        "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us",
        attention_rows(),
    )
    write_csv(
        folder / "moe.csv", "tokens,activated_experts,time_us", [(1, 10, 7), (2048, 512, 900)]
    )
    source = "auto" if "linear_state" in left_out else "bundle"
    return compile_costs(
        request(NAME, "H100", hardware_name="MyCard", source=source, profile_dirs=(root,))
    )


def test_a_scan_is_of_prompts_and_an_update_of_sequences(tmp_path: Path) -> None:
    by_name = {op.name: op for op in compiled(tmp_path).ops}
    scan, update = by_name["linear_attention"], by_name["linear_state"]
    assert (scan.feature, update.feature) == ("prefills", "sequences")
    assert (by_name["linear_conv"].feature, scan.repeat, update.repeat) == ("tokens", 36, 36)
    tokens = np.array([1, 2, 1000])
    assert scan.ps[0] == 0 and (scan.ps[tokens] == (100 + 2 * tokens - 35) * 10**6).all(), (
        "without one update, of 35 us"
    )
    assert (update.ps[[1, 2, 128]] == np.array([35, 40, 670]) * 10**6).all()
    assert scan.provenance[16] == Provenance.MEASURED and "linear" not in by_name["moe"].source
    assert "per_sequence.csv" in scan.source


def test_a_scan_never_takes_less_than_nothing(tmp_path: Path) -> None:
    costs = compiled(tmp_path)
    path = tmp_path / "MyCard" / NAME / "bf16" / "tp1" / "per_sequence.csv"
    path.write_text(path.read_text().replace("linear_state,1,35", "linear_state,1,103"))
    again = compile_costs(
        request(NAME, "H100", hardware_name="MyCard", source="bundle", profile_dirs=(tmp_path,))
    )
    scans = [
        next(op for op in each.ops if op.name == "linear_attention") for each in (costs, again)
    ]
    assert scans[1].ps[:3].tolist() == [0, 0, 10**6] and scans[0].ps[1] > 0


def test_scans_without_updates_are_taken_as_they_are(tmp_path: Path) -> None:
    by_name = {op.name: op for op in compiled(tmp_path, ("linear_state",)).ops}
    assert (
        by_name["linear_attention"].ps[16] == 132 * 10**6
        and by_name["linear_attention"].feature == "prefills"
    )
    assert not by_name["linear_state"].source.startswith("profile bundle")


@pytest.mark.parametrize("left_out", [(), APART])
def test_a_router_is_inside_of_the_experts_only_without_rows_of_its_own(
    left_out: tuple[str, ...], tmp_path: Path
) -> None:
    costs = compiled(tmp_path, left_out)
    by_name = {op.name: op for op in costs.ops}
    for name in APART:
        assert by_name[name].ps[16] == (0 if left_out else 26 * 10**6)
        assert any(note.startswith(f"{name}: its time is inside") for note in costs.notes) == bool(
            left_out
        )


def test_the_folder_of_a_deployment_is_its_weights_type() -> None:
    assert variant_of(Dtypes("float8_e4m3fn", "bfloat16", "bf16")) == "fp8"
    assert (
        variant_of(Dtypes("mxfp4", "bf16", "fp8")) == "fp4-kvfp8" and variant_of(Dtypes()) == "bf16"
    )
