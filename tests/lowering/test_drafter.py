"""Drafters of real models: what they weigh, what they cost, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from llmsim.cli import run_main
from llmsim.config import EngineOverrides, load_cluster, resolve
from llmsim.config.errors import InputError, LlmsimError, NotYetError
from llmsim.lowering import LoweringOptions, lower
from llmsim.lowering.types import LoweredGroup
from llmsim.model import Dtypes, Layout, kv_bytes_per_token, load_model, operators, weight_bytes
from llmsim.scheduling.conformance.vllm.installed import runs_v2

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster_config" / "h100_llama31_8b.json"
TARGET, SMALL = load_model("meta-llama/Llama-3.1-8B"), load_model("meta-llama/Llama-3.2-1B")
EAGLE = {"method": "eagle", "num_speculative_tokens": 3, "acceptance_rate": 0.7}


def lowered(
    config: dict[str, Any] | None, cluster: Path = CLUSTER, *, exact: bool = False, **engine: Any
) -> LoweredGroup:
    deployment = resolve(
        load_cluster(cluster), EngineOverrides(speculative_config=config, **engine)
    )
    return lower(deployment, LoweringOptions(cost_source="roofline", exact=exact)).groups[0]


def test_a_draft_model_adds_its_weights_and_its_kv_and_takes_a_slot_of_every_sequence() -> None:
    plain = lowered(None)
    group = lowered({"model": SMALL.name, "num_speculative_tokens": 3, "acceptance_rate": 0.5})
    weights = weight_bytes(SMALL, Layout(), Dtypes())
    assert dict(group.ledger.lines)["weights of the drafter"] == -weights
    assert group.ledger.block_bytes - plain.ledger.block_bytes == 16 * kv_bytes_per_token(
        SMALL, Layout(), Dtypes()
    )
    assert (
        group.engine.max_num_scheduled_tokens
        == group.engine.max_num_batched_tokens - group.engine.max_num_seqs
    )
    names = [name for name, _ in group.busy_names]
    assert (
        names.count("launches") == 3
        and names.count("draft lm_head") == 2
        and names.count("lm_head") == 1
    )


def test_a_head_is_a_layer_of_the_model_and_a_projection() -> None:
    group = lowered(EAGLE)
    layer = sum(
        op.weight_bytes for op in operators(TARGET, Layout(), Dtypes()) if op.part == "layer"
    )
    projection = TARGET.hidden_size * 2 * TARGET.hidden_size * 2
    assert dict(group.ledger.lines)["weights of the drafter"] == -(layer + projection)
    per_layer = kv_bytes_per_token(TARGET, Layout(), Dtypes()) // TARGET.num_layers
    assert group.ledger.block_bytes == 16 * per_layer * (TARGET.num_layers + 1)
    assert group.scheduler.kv.drops_last_hit and group.scheduler.speculation.lookahead == 3
    wide = lowered({**EAGLE, "method": "eagle3"})
    more = TARGET.hidden_size * 2 * (TARGET.hidden_size + (32 + 2 * 8) * 128)
    assert dict(wide.ledger.lines)["weights of the drafter"] == -(layer + projection + more)
    assert [name for name, _ in wide.busy_names].count("draft draft_fc") == 1, (
        "only in the first pass"
    )
    assert [name for name, _ in group.busy_names].count("draft draft_fc") == 2


def test_ngram_has_no_drafter_and_turns_asynchronous_scheduling_off() -> None:
    group = lowered({**EAGLE, "method": "ngram"})
    assert group.draft is None and not group.engine.async_scheduling
    assert group.ledger.block_bytes == lowered(None).ledger.block_bytes
    assert group.scheduler.speculation.lookahead == 0


def test_ngram_of_033_drafts_on_the_devices() -> None:
    """There, vLLM refuses asynchronous scheduling with it under Model Runner V1."""
    drafts = {**EAGLE, "method": "ngram"}
    group = lowered(drafts, engine_profile="vllm-0.33")
    assert group.engine.async_scheduling and runs_v2(group.engine)
    synchronous = lowered(drafts, engine_profile="vllm-0.33", async_scheduling=False)
    others = (synchronous, lowered(drafts), lowered(EAGLE, engine_profile="vllm-0.33"))
    assert not any(runs_v2(one.engine) for one in others)


def test_capture_sizes_are_whole_decodes() -> None:
    assert all(size % 4 == 0 for size in lowered(EAGLE).engine.cuda_graph_sizes)
    given = lowered(EAGLE, cuda_graph_sizes=(1, 2, 4, 10, 14)).engine.cuda_graph_sizes
    assert given == (4, 12)


def bad(**fields: Any) -> dict[str, Any]:
    merged = {**EAGLE, **fields}
    return {key: value for key, value in merged.items() if value != "none"}


@pytest.mark.parametrize(
    ("config", "engine", "words"),
    [
        (bad(acceptance_rate="none"), {}, "give exactly one of acceptance_rate"),
        (
            bad(synthetic_acceptance_length=2.0),
            {},
            "synthetic_acceptance_length is given beside acceptance_rate",
        ),
        (bad(acceptance_rate=[0.5, 0.4]), {}, "has 2 entries, but num_speculative_tokens is 3"),
        (bad(acceptance_rate="none", synthetic_acceptance_rates=[0.1, 0.2, 0.1]), {}, "increases"),
        (
            bad(acceptance_rate="none", synthetic_acceptance_length=4.5),
            {},
            "more than the 4 tokens",
        ),
        (bad(method="none"), {}, "say ngram, draft_model, eagle"),
        (bad(method="draft_model"), {}, "name the model that drafts"),
        (bad(method="ngram", model="x"), {}, "ngram has no model"),
        (bad(proposal_rate=0.5), {}, 'option of the method "ngram"'),
        (bad(num_speculative_tokens_per_batch_size=[[2, 4, 1]]), {}, "ascend from 1"),
        (bad(method="ngram"), {"async_scheduling": True}, "no step ahead of drafts"),
        (EAGLE, {"scheduler": "sarathi"}, "is an option of the scheduler vllm_v1"),
        (bad(model="Qwen/Qwen3-0.6B"), {}, "its head reads the model's hidden states"),
        (bad(method="draft_model", model="Qwen/Qwen3-0.6B"), {}, "shares the model's"),
        (bad(draft_tensor_parallel_size=3), {}, "it may be 1 or 1"),
        (
            bad(model=SMALL.name, method="none"),
            {"max_num_batched_tokens": 64, "max_num_seqs": 64},
            "drafting adds up",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    config: dict[str, Any], engine: dict[str, Any], words: str
) -> None:
    with pytest.raises(LlmsimError) as caught:
        lowered(config, **engine)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert isinstance(caught.value, InputError | NotYetError)


def on(tmp_path: Path, model: str, devices: int, **fields: Any) -> Path:
    """A cluster of instances with so many devices each, on 80 GB cards."""
    memory = {"mem_size": 79.1, "mem_bw": 3350, "mem_latency": 0}
    one = {
        "model_name": model,
        "hardware": "H100",
        "npu_mem": memory,
        "num_npus": devices,
        **fields,
    }
    path = tmp_path / "cluster.json"
    path.write_text(
        json.dumps({"link_bw": 450, "link_latency": 1000, "nodes": [{"instances": [one] * 2}]})
    )
    return path


@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp", "draft_model"])
@pytest.mark.parametrize("tp", [1, 2])
def test_every_node_of_a_drafter_in_the_engine_takes_what_its_tables_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str, tp: int
) -> None:
    config = {**EAGLE, "method": method} | (
        {"model": SMALL.name} if method == "draft_model" else {}
    )
    path = on(tmp_path, TARGET.name, tp, tp_size=tp)
    trace = "synthetic:n=6,rate=40,input=fixed:200,output=fixed:21,seed=1"
    runs = []
    for more in ((), ("--exact",)):
        arguments = [
            "--cluster-config",
            str(path),
            "--dataset",
            trace,
            "--cost-source",
            "roofline",
            "--json",
        ]
        assert run_main([*arguments, "--speculative-config", json.dumps(config), *more]) == 0
        runs.append(json.loads(capsys.readouterr().out))
    for name in ("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "duration", "sources"):
        assert runs[0][name] == runs[1][name]


def test_ranks_in_lock_step_draft_with_dense_heads_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = on(tmp_path, "Qwen/Qwen3-30B-A3B-Instruct-2507", 1, tp_size=1, dp_group="d")
    with pytest.raises(NotYetError, match="has experts, which 2 data-parallel ranks"):
        lowered({**EAGLE, "method": "mtp"}, path)
    result = run(capsys, rate=0.8, config={**EAGLE, "method": "eagle"}, cluster=path)
    assert (
        set(result["invariants"].values()) == {"ok"}
        and result["speculation"]["accepted_tokens"] > 0
    )


def test_ranks_that_share_their_ffn_draft_apart(tmp_path: Path) -> None:
    whole, layout = [], {"attn_tp_size": 2, "attn_dp_size": 2, "ffn_tp_size": 4, "ffn_ep_size": 1}
    for keys in ({"tp_size": 2}, layout):
        path = on(tmp_path, TARGET.name, 4 if keys is layout else 2, **keys)
        draft = lowered({**EAGLE, "method": "mtp"}, path).draft
        assert draft is not None
        whole.append([(op.name, op.weight_bytes, op.feature) for op in draft.operators[0]])
    assert whole[0] == whole[1]


def run(
    capsys: pytest.CaptureFixture[str], *options: str, rate: float, config: dict[str, Any] = EAGLE,
    cluster: Path = CLUSTER,
) -> Any:  # fmt: skip
    text = json.dumps({**config, "acceptance_rate": rate})
    trace = "synthetic:n=40,rate=4,input=fixed:200,output=fixed:61,seed=1"
    arguments = [
        "--cluster-config",
        str(cluster),
        "--dataset",
        trace,
        "--cost-source",
        "roofline",
        "--json",
    ]
    assert run_main([*arguments, "--speculative-config", text, *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_acceptance_zero_and_one_are_exact_in_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    none, every = run(capsys, rate=0.0), run(capsys, rate=1.0)
    assert none["speculation"]["tokens_per_verification"] == 1.0
    assert none["speculation"]["verifications"] == 40 * 60
    assert none["mean_itl_ms"] == pytest.approx(none["speculation"]["mean_output_gap_ms"])
    assert every["speculation"]["tokens_per_verification"] == 4.0
    assert every["speculation"]["verifications"] == 40 * 15
    assert every["speculation"]["per_position"] == [1.0, 1.0, 1.0]
    assert every["median_itl_ms"] == 0.0
    assert every["speculation"]["mean_output_gap_ms"] == pytest.approx(
        4 * every["mean_itl_ms"], rel=1e-6
    )
    for result in (none, every):
        assert set(result["invariants"].values()) == {"ok"}
        assert any(row["operator"].startswith("draft ") for row in result["sources"]["operators"])


def test_the_seed_of_the_run_draws_what_holds(capsys: pytest.CaptureFixture[str]) -> None:
    first, same = run(capsys, rate=0.6), run(capsys, rate=0.6)
    other = run(capsys, "--seed", "7", rate=0.6)
    assert first == same
    assert other["speculation"]["accepted_tokens"] != first["speculation"]["accepted_tokens"]


@pytest.mark.parametrize("method", ["ngram", "eagle3", "mtp", "draft_model"])
def test_every_method_runs(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = {**EAGLE, "method": method} | (
        {"model": SMALL.name} if method == "draft_model" else {}
    )
    result = run(capsys, rate=0.5, config=config)
    assert result["completed"] == 40 and set(result["invariants"].values()) == {"ok"}
    drafted = any(row["operator"].startswith("draft ") for row in result["sources"]["operators"])
    assert drafted == (method != "ngram")


def test_the_document_s_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "explanation" / "speculation.md").read_text(encoding="utf-8")
    config = text.partition("--speculative-config '")[2].partition("'")[0]
    arguments = [
        "--cluster-config",
        str(CLUSTER),
        "--dataset",
        str(ROOT / "dataset" / "chat_h100_300.jsonl"),
        "--json",
    ]
    assert run_main([*arguments, "--num-reqs", "40", "--speculative-config", config]) == 0
    result = json.loads(capsys.readouterr().out)["speculation"]
    assert 1 < result["acceptance_length"] < 4
