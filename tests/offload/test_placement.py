"""Weights and attention outside of the devices through `llmsim run`: placement, ledger, rates,
parts, refusals.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from llmsim.api.preparation.prepare import prepare
from llmsim.cli import run_main
from llmsim.cli.run.arguments import checked_options
from llmsim.config.errors import InputError
from llmsim.costs.sources.pim_part import PARTS_DIR, pim_attention, pim_part_names, read_pim_part

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "dataset" / "example_10.jsonl"
LAYER_BYTES = 2 * (6144 * 4096 + 4096 * 4096 + 3 * 14336 * 4096 + 2 * 4096)  # Llama-3.1-8B, bf16
HEAD_BYTES = 2 * 128256 * 4096


def cluster(devices: int = 1, instances: int = 1, **instance: Any) -> dict[str, Any]:
    one = {
        "model_name": "meta-llama/Llama-3.1-8B",
        "hardware": "A6000",
        "npu_mem": {"mem_size": 40, "mem_bw": 768},
        "num_npus": devices,
        "pd_type": None,
        **instance,
    }
    node = {"cpu_mem": {"mem_size": 512, "mem_bw": 256}, "instances": [one] * instances}
    pool = {"mem_size": 1024, "mem_bw": 60, "mem_latency": 250, "num_devices": 4}
    return {"link_bw": 112, "link_latency": 0, "cxl_mem": pool, "nodes": [node]}


def summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], document: dict[str, Any], *options: str
) -> dict[str, Any]:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    capsys.readouterr()
    arguments = [
        "--cluster-config",
        str(path),
        "--dataset",
        str(TRACE),
        "--cost-source",
        "roofline",
        "--json",
    ]
    assert run_main([*arguments, *options]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refusal(tmp_path: Path, capsys: pytest.CaptureFixture[str], document: dict[str, Any]) -> str:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert run_main(["--cluster-config", str(path), "--dataset", str(TRACE)]) in (2, 3)
    return capsys.readouterr().err


def ledger(found: dict[str, Any]) -> dict[str, int]:
    return {line["label"]: line["bytes"] for line in found["kv_cache"][0]["ledger"]}


def test_a_step_is_never_faster_than_its_copies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = summary(tmp_path, capsys, cluster(placement={"default": {"weights": "cxl:0"}}))
    copied = 32 * LAYER_BYTES + HEAD_BYTES + 2 * 4096
    least_ms = copied / 60e9 * 1e3
    assert least_ms < found["mean_tpot_ms"] < 1.01 * least_ms
    assert sum(ledger(found).values()) == 0
    assert ledger(found)["weights that are elsewhere"] == copied + HEAD_BYTES
    assert ledger(found)["buffers of copied weights"] == -(HEAD_BYTES + 2 * 4096 + LAYER_BYTES)


def test_layers_come_before_blocks_before_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    placement = {
        "default": {"weights": "npu"},
        "blocks": [{"blocks": "0-3", "weights": "cxl:1"}],
        "layers": {"qkv_proj": {"weights": "npu"}, "lm_head": {"weights": "cpu"}},
    }
    found = summary(tmp_path, capsys, cluster(placement=placement))
    qkv = 2 * 6144 * 4096
    assert ledger(found)["weights that are elsewhere"] == 4 * (LAYER_BYTES - qkv) + HEAD_BYTES
    plain = summary(tmp_path, capsys, cluster())
    assert found["kv_cache"][0]["num_blocks"] > plain["kv_cache"][0]["num_blocks"]
    notes = " ".join(found["notes"])
    assert "from cxl:1 at up to 60 GB/s" in notes and "from cpu at up to 112 GB/s" in notes


def test_what_streams_from_one_memory_shares_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    placement = {"default": {"weights": "cxl:0"}}
    alone = summary(tmp_path, capsys, cluster(placement=placement))
    pair = summary(tmp_path, capsys, cluster(devices=2, placement=placement))
    groups = summary(tmp_path, capsys, cluster(instances=2, placement=placement))
    assert pair["mean_tpot_ms"] == pytest.approx(
        alone["mean_tpot_ms"], rel=0.02
    )  # half the bytes at half the rate
    assert groups["mean_tpot_ms"] == pytest.approx(2 * alone["mean_tpot_ms"], rel=0.02)


def test_exact_evaluation_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = cluster(placement={"default": {"weights": "cpu"}}, enable_attn_offloading=True)
    document["nodes"][0]["cpu_mem"]["pim_config"] = "HBM2_1GB_2000_pim"
    assert summary(tmp_path, capsys, document) == summary(tmp_path, capsys, document, "--exact")


@pytest.mark.parametrize("policy", ["layer", "touched", "demand"])
def test_experts_elsewhere(policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def tpot(**more: Any) -> float:
        model = {"model_name": "microsoft/Phi-mini-MoE-instruct", **more}
        return float(summary(tmp_path, capsys, cluster(**model))["mean_tpot_ms"])

    away = {"placement": {"layers": {"moe": {"weights": "cpu"}}}, "expert_prefetch": policy}
    full, half, none = tpot(**away), tpot(**away, expert_cache=0.5), tpot(**away, expert_cache=1.0)
    assert full > half > none
    assert none == pytest.approx(tpot(), rel=1e-9)
    if policy != "layer":
        everything = tpot(placement=away["placement"], expert_prefetch="layer")
        assert full < everything  # a few tokens touch few experts


def test_local_reads_take_what_the_file_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = cluster(npu_mem={"mem_size": 40, "mem_bw": 768, "mem_latency": 1_000_000})
    same = summary(tmp_path, capsys, cluster())
    charged = summary(tmp_path, capsys, cluster(), "--enable-local-offloading")
    assert charged["duration"] == same["duration"]  # kernels contain their own reads
    assert summary(tmp_path, capsys, slow)["duration"] == same["duration"]
    limited = summary(tmp_path, capsys, slow, "--enable-local-offloading")
    assert (
        limited["mean_tpot_ms"] > 32 * 6
    )  # six operators of a layer have weights, each waits 1 ms for them


def test_kv_is_where_decodes_attend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = cluster(enable_attn_offloading=True)
    document["nodes"][0]["cpu_mem"]["pim_config"] = "DDR4_8GB_3200_pim"
    found = summary(tmp_path, capsys, document)
    assert found["kv_cache"][0]["num_blocks"] == (512 << 30) // (16 * 131072)
    assert sum(ledger(found).values()) == 0
    assert set(found["invariants"].values()) == {"ok"}
    plain = summary(tmp_path, capsys, cluster())
    assert found["mean_tpot_ms"] != plain["mean_tpot_ms"]


def test_times_of_a_simulator_replace_those_of_the_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = cluster(enable_attn_offloading=True)
    document["nodes"][0]["cpu_mem"].update(pim_config="HBM2_1GB_2000_pim", pim_table="t.csv")
    (tmp_path / "t.csv").write_text("context_tokens,time_us\n0,1000\n1000,1000\n", encoding="utf-8")
    assert (
        summary(tmp_path, capsys, document)["mean_tpot_ms"] > 32
    )  # a millisecond in each of 32 layers
    (tmp_path / "t.csv").write_text("context_tokens,time_us\n10,1\n10,2\n", encoding="utf-8")
    assert "t.csv:3:1: context_tokens is 10; it must be a whole number above" in refusal(
        tmp_path, capsys, document
    )


def test_refusals_name_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "give the node's cpu_mem a pim_config" in refusal(
        tmp_path, capsys, cluster(enable_attn_offloading=True)
    )
    error = refusal(tmp_path, capsys, cluster(placement={"layers": {"qkv": {"weights": "cpu"}}}))
    assert 'placement.layers has "qkv", which is no operator' in error
    assert "turn enable_attn_offloading on too" in refusal(
        tmp_path, capsys, cluster(enable_sub_batch_interleaving=True)
    )
    document = cluster(placement={"default": {"weights": "cxl:0"}})
    document["cxl_mem"]["mem_size"] = 32
    assert "do not fit its 8.00 GiB" in refusal(tmp_path, capsys, document)
    document = cluster(enable_attn_offloading=True)
    document["nodes"][0]["cpu_mem"]["pim_config"] = "HBM9"
    assert 'the memory part "HBM9" is not known' in refusal(tmp_path, capsys, document)


def test_a_part_streams_what_its_timing_allows() -> None:
    part = read_pim_part(PARTS_DIR / "HBM2_1GB_2000_pim.ini")
    # 16 banks open in four groups of four, 30 ns apart; a row of 1 KB then streams in 16 x 2 ns +
    # 28 ns, hidden.
    assert part.period_ps == 120_000 and part.row_ps == 60_000 and part.page_bytes == 1024
    assert part.inside_bytes_per_s == pytest.approx(16 * 1024 / 120e-9 * (1 - 260 / 3900))
    assert part.bus_bytes_per_s == 32 * 10**9 and part.channel_bytes == 1 << 30
    cost = pim_attention(part, channels=64, kv_bytes=4096, heads=32, kv_heads=8)
    read = (
        4096 / 8 * 4 / part.inside_bytes_per_s
    )  # a KV head per channel, read for each of its four query heads
    assert cost.channels == 8
    assert cost.ps_per_token == pytest.approx((read + 4 * 4 / 32e9) * 1e12)


@pytest.mark.parametrize("name", pim_part_names())
def test_bundled_parts_are_faster_inside_than_outside(name: str) -> None:
    part = read_pim_part(PARTS_DIR / f"{name}.ini")
    assert part.inside_bytes_per_s > 2 * part.bus_bytes_per_s
    assert part.idle_w < part.peak_w


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("tCK = 1", "tCK = 0"), r"\[timing\] tck is 0; it must be a positive number"),
        (("tRP = 14\n", ""), r"\[timing\] has no trp"),
        (
            ("pim_type = SINGLE", "pim_type = TRIPLE"),
            "pim_type is TRIPLE; it may be SINGLE or DUAL",
        ),
        (("columns = 64", "columns = 6.5"), "columns is 6.5; it must be a whole number"),
        (("[system]", "[system"), "not a part file"),
    ],
)
def test_a_bad_part_file_is_named(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    text = (PARTS_DIR / "HBM2_1GB_2000_pim.ini").read_text(encoding="utf-8")
    path = tmp_path / "part.ini"
    path.write_text(text.replace(*change), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_pim_part(path)


def test_a_block_that_the_model_does_not_have_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = cluster(
        placement={
            "blocks": [{"blocks": "0-3", "weights": "cpu"}, {"blocks": "30-40", "weights": "cpu"}]
        }
    )
    error = refusal(tmp_path, capsys, document)
    assert "placement.blocks[1] names block 40, but the model has blocks 0 to 31" in error


@pytest.mark.parametrize(
    ("model", "blocks", "only"),
    [
        (
            "deepseek-ai/DeepSeek-V2-Lite",
            "0",
            {"gate_up_proj": True, "moe": False, "moe_gate": False},
        ),
        (
            "deepseek-ai/DeepSeek-V2-Lite",
            "1-26",
            {"gate_up_proj": False, "moe": True, "moe_gate": True},
        ),
        (
            "Qwen/Qwen3-Next-80B-A3B-Instruct",
            "3,7,11,15,19,23,27,31,35,39,43,47",
            {"qkv_proj": True, "linear_ba_proj": False},
        ),
        (
            "openai/gpt-oss-20b",
            ",".join(str(2 * number) for number in range(12)),
            {"attention_sliding": True, "attention": False},
        ),
    ],
)
def test_blocks_of_a_mixed_model_hold_what_those_layers_have(
    model: str, blocks: str, only: dict[str, bool], tmp_path: Path
) -> None:
    """An operator that only some layers have is placed by their numbers: all of it by its own, none
    by the others'.
    """
    path = tmp_path / "c.json"
    document = cluster(
        model_name=model, placement={"blocks": [{"blocks": blocks, "weights": "cpu"}]}
    )
    document["nodes"][0]["instances"][0]["npu_mem"]["mem_size"] = 400
    path.write_text(json.dumps(document), encoding="utf-8")
    arguments = [
        "--cluster-config",
        str(path),
        "--dataset",
        str(TRACE),
        "--cost-source",
        "roofline",
    ]
    plan = prepare(checked_options(arguments)).lowered.groups[0].offload
    assert plan is not None
    of: dict[str, set[str]] = {}
    for execution in plan.where.executions():
        of.setdefault(execution.op.name, set()).add(plan.where.of(execution))
    for name, there in only.items():
        assert of[name] == ({"cpu"} if there else {"npu"}), name
