"""`llmsim why`: parts that add up, planted causes that are named first, and silence without one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import llmsim
from evaluation.why import KINDS, control, named_first, poisson
from llmsim.api.why.answer import Why
from llmsim.api.why.seen import Seen
from llmsim.cli import main
from llmsim.config.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster_config" / "h100_llama31_8b.json"
TRACE = ROOT / "dataset" / "example_10.jsonl"
ROOFLINE: dict[str, Any] = {"cost_source": "roofline"}
needs_times = pytest.importorskip("aiconfigurator_core", reason="the cases are drawn for its times")


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_cause_is_named_first_and_confirmed(kind: str) -> None:
    plant, names = KINDS[kind]
    answer = plant(1).answer()
    assert named_first(answer, names), (answer.causes, answer.what_ifs)
    assert answer.causes[0].share > 0 and answer.causes[0].evidence


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_healthy_run_has_no_cause(seed: int) -> None:
    answer = control(seed).answer()
    assert answer.causes == ()
    assert "No single cause" in str(answer)
    assert "<pre>" in answer._repr_html_() and "No single cause" in answer._repr_html_()
    assert answer.what_ifs and answer.what_ifs[0].after is not None


def test_a_change_that_helps_without_a_symptom_is_named_beside_no_cause() -> None:
    """Twice the prefill instances take more than a quarter away from a run that lacks none."""
    load = "synthetic:n=300,rate=12,input=lognormal:1100:sigma=0.6,output=lognormal:150,seed=7"
    apart = llmsim.Cluster.build("Qwen/Qwen3-8B", "H100", prefill=1, decode=1)
    answer = llmsim.run(apart, load, disable_term=["kv_reads"]).why()
    best = answer.what_ifs[0]
    assert answer.causes == () and best.cause is None and best.reduction >= 0.25
    said = f"No single cause: {best.change} would take {best.reduction:.0%} away, as more devices"
    assert said in str(answer)


def test_reads_of_kv_that_pause_a_decode_instance_are_named() -> None:
    """By the rules of vLLM 0.24 its host posts a read for each block and layer; 0.33 does not wait
    for that.
    """
    load = "synthetic:n=300,rate=20,input=lognormal:1000,output=lognormal:200,seed=1"
    apart = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100", prefill=1, decode=1)
    remedy = "reads of KV that take the host no time (kv_read_ns and kv_descriptor_ns 0)"
    answer = llmsim.run(apart, load, engine_profile="vllm-0.24").why("tpot")
    assert (answer.causes[0].name, answer.what_ifs[0].change) == ("host overhead", remedy)
    assert answer.what_ifs[0].reduction > 0.25
    newer = llmsim.run(apart, load, engine_profile="vllm-0.33").why("tpot")
    assert remedy not in [one.change for one in newer.what_ifs]


def squeezed(**options: Any) -> llmsim.Result:
    """Preemptions, KV transfers and queues in one run."""
    cluster = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100", prefill=1, decode=1)
    workload = "synthetic:n=80,rate=30,input=600,output=120,seed=1"
    return llmsim.run(cluster, workload, num_gpu_blocks_override=400, **ROOFLINE, **options)


@pytest.mark.parametrize("disaggregated", [False, True])
def test_parts_before_and_after_the_first_token_add_up_exactly(disaggregated: bool) -> None:
    result = (
        squeezed()
        if disaggregated
        else llmsim.run(
            CLUSTER,
            "synthetic:n=80,rate=30,input=600,output=120,seed=1",
            num_gpu_blocks_override=400,
            **ROOFLINE,
        )
    )
    requests = result._results.requests
    assert disaggregated or requests.preemptions.sum() > 0
    seen = Seen(result, "ttft", 99)
    to_first = sum(seen.before[part] for part in seen.before)
    later = sum(seen.after[part] for part in seen.before)
    assert np.array_equal(to_first, requests.first_token_ps - requests.arrival_ps)
    assert np.array_equal(later, requests.finish_ps - requests.first_token_ps)
    for parts in (seen.before, seen.after):
        assert all((part >= 0).all() for part in parts.values())


def run_folder(folder: Path, *more: str) -> Path:
    arguments = ["run", "--cluster-config", str(CLUSTER), "--dataset", str(TRACE), "--json"]
    assert main([*arguments, "--cost-source", "roofline", "--run-dir", str(folder), *more]) == 0
    return folder


def test_the_command_explains_a_run_folder_from_anywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    folder = run_folder(
        tmp_path / "run", "--max-num-seqs", "2", "--dataset", "dataset/example_10.jsonl"
    )
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    plot = tmp_path / "why.png"
    words = ["why", "run", "--json", "--percentile", "90", "--request", "3", "--what-if", "2"]
    assert main([*words, "--plot", str(plot)]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == "" and plot.stat().st_size > 1000
    assert set(found["causes"][0]) >= {"name", "group", "share", "evidence"}
    assert len(found["what_ifs"]) == 2
    assert all({"change", "before", "after"} <= set(one) for one in found["what_ifs"])
    assert found["request"]["request_id"] == "3" and found["request"]["events_ms"]["arrival"] == 0
    summary = json.loads((folder / "summary.json").read_text())
    again = llmsim.run(CLUSTER, TRACE, max_num_seqs=2, **ROOFLINE).why("ttft", 90)
    assert again.to_dict()["value_ms"] == found["value_ms"] == summary["p90_ttft_ms"]
    assert main(["why", "run", "--request", "3"]) == 0
    text = capsys.readouterr().out
    assert "Request 3: finished" in text and "What if" in text


def test_a_run_of_objects_is_repeated_from_what_it_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = [llmsim.Request(i / 10, 200 + i, 20) for i in range(12)]
    result = llmsim.run(CLUSTER, requests, **ROOFLINE)
    result.save(tmp_path / "run")
    assert main(["why", str(tmp_path / "run"), "--json", "--what-if", "0"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["value_ms"] == result.summary["p99_ttft_ms"] and err == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--metric", "tpott"], 'metric is "tpott" (did you mean "tpot"?)'),
        (["--percentile", "100"], "percentile is 100"),
        (["--request", "nobody"], 'request "nobody" is not in this run'),
        (["--plot", "x.txt"], "the name of a picture ends in .png"),
    ],
)
def test_wrong_options_are_one_sentence(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_folder(tmp_path / "run")
    capsys.readouterr()
    assert main(["why", str(tmp_path / "run"), *words]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


def test_folders_that_cannot_be_repeated_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", str(tmp_path)]) == 2
    assert "is not a run folder, as it has no" in capsys.readouterr().err
    assert main(["why", str(tmp_path / "nowhere")]) == 2
    assert "nowhere does not exist; name a folder" in capsys.readouterr().err
    (tmp_path / "out.csv").write_text("", encoding="utf-8")
    assert main(["why", str(tmp_path / "out.csv")]) == 2
    assert "out.csv is a file and no run folder" in capsys.readouterr().err
    manifest = run_folder(tmp_path / "run") / "manifest.json"
    fields = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({key: fields[key] for key in fields if key != "run"}))
    capsys.readouterr()
    assert main(["why", str(tmp_path / "run")]) == 2
    assert "does not say what the run was given" in capsys.readouterr().err


def test_a_change_of_the_figures_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = run_folder(tmp_path / "run", "--disable-term", "launches")  # nobody waits for the host
    summary = quick / "summary.json"
    fields = json.loads(summary.read_text())
    summary.write_text(json.dumps({**fields, "mean_ttft_ms": 1.0}))
    capsys.readouterr()
    assert main(["why", str(tmp_path / "run"), "--what-if", "0"]) == 0
    said = capsys.readouterr()
    assert "gives other figures now" in said.err
    assert "No cause is named, as no change was tested." in said.out


def test_a_run_without_steps_is_refused() -> None:
    with pytest.raises(llmsim.InputError, match="recorded no steps"):
        llmsim.run(CLUSTER, TRACE, steps=False, **ROOFLINE).why()


def test_changes_that_cannot_run_are_kept_with_their_problem() -> None:
    answer: Why = squeezed().why("ttft", 90)
    assert all(one.after is not None or one.problem for one in answer.what_ifs)


def drawn(seed: int, rate: float, n: int = 400) -> pd.DataFrame:
    """Requests of moderate lengths, the same ones for a seed."""
    return poisson(np.random.default_rng(seed), rate, n)


def instances_of(fields: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for node in fields["nodes"] for one in node["instances"]]


def test_a_small_cache_of_decode_instances_is_not_said_of_prefill_ones() -> None:
    """The prefill instance's cache never fills, though its requests are preempted later."""
    fields = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100", prefill=1, decode=2).fields()
    for instance in instances_of(fields)[1:]:
        instance["num_gpu_blocks_override"] = 400
    result = llmsim.run(fields, drawn(4, 12.0))
    assert result.requests["preemptions"].sum() > 0
    causes = result.why().causes
    assert [(one.name, one.group in (1, 2)) for one in causes] == [("small KV cache", True)]


def test_a_remedy_of_one_instance_takes_nothing_from_its_peers() -> None:
    """Four times a small limit is less than what the peers have."""
    fields = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100", instances=3).fields()
    instances_of(fields)[1]["num_gpu_blocks_override"] = 620
    result = llmsim.run(fields, drawn(1, 24.0), request_routing_policy="RR")
    answer = result.why()
    assert (answer.causes[0].name, answer.causes[0].group) == ("small KV cache", 1)
    [tested] = [one for one in answer.what_ifs if one.cause == "small KV cache"]
    assert tested.change == "4 times the KV cache (2480 blocks for group 1)"
    instances_of(fields)[1]["num_gpu_blocks_override"] = 2480
    raised = llmsim.run(fields, drawn(1, 24.0), request_routing_policy="RR")
    assert tested.after == pytest.approx(raised.summary["p99_ttft_ms"])


def test_one_slow_instance_of_several_is_a_straggler_whatever_slows_it() -> None:
    fields = llmsim.Cluster.build("Qwen/Qwen3-30B-A3B", "H100", tp=2, instances=3).fields()
    instances_of(fields)[0] |= {"enforce_eager": True, "launch_ns": 90_000}
    result = llmsim.run(fields, drawn(7, 20.0), request_routing_policy="RR")
    causes = result.why("tpot").causes
    assert [one.name for one in causes] == ["straggler", "host overhead"]
    assert causes[0].group == 0


def test_requests_whose_own_prompts_are_long_have_that_as_their_cause() -> None:
    cluster = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100", instances=2)
    requests = drawn(2, 10.0)
    requests.loc[range(0, 400, 40), "input_tokens"] = 30_000
    result = llmsim.run(cluster, requests)
    answer = result.why()
    assert answer.causes[0].name == "long prompts"
    after = {one.change: one.after for one in answer.what_ifs}
    others = result.requests.loc[requests["input_tokens"] < 30_000, "ttft_ps"]
    alone = llmsim.run(cluster, requests[requests["input_tokens"] < 30_000])
    without = next(value for change, value in after.items() if change.startswith("without the 10"))
    assert without == pytest.approx(alone.summary["p99_ttft_ms"])
    assert without <= np.percentile(others, 99) / 1e9 and "TP2 instead of TP1" in after


def apart() -> dict[str, Any]:
    return llmsim.Cluster.build("Qwen/Qwen3-30B-A3B", "H100", tp=2, attention=1, ffn=1).fields()


@pytest.mark.parametrize("metric", ["ttft", "tpot"])
def test_rows_over_a_slow_link_are_a_slow_link(metric: str) -> None:
    fields = apart()
    fields["link_bw"] = [450, 1.5, 1.5]
    answer = llmsim.run(fields, drawn(14, 4.0, 150)).why(metric)
    assert answer.causes[0].name == "slow link" and answer.causes[0].reduction > 0.5
    assert "rows on their way" in answer.causes[0].evidence
    assert all(one.problem is None for one in answer.what_ifs)


def test_the_side_that_the_other_waits_for_is_named() -> None:
    fields = apart()
    ffn = next(one for one in instances_of(fields) if one["pd_type"] == "ffn")
    ffn |= {"hardware": "L40S", "npu_mem": {"mem_size": 200, "mem_bw": 300}}
    answer = llmsim.run(fields, drawn(14, 4.0, 150)).why("tpot")
    assert answer.causes[0].name == "slow FFN devices"
    like_attention = llmsim.run(apart(), drawn(14, 4.0, 150)).summary["p99_tpot_ms"]
    after = {one.change: one.after for one in answer.what_ifs}
    assert after["FFN on devices like the attention's"] == pytest.approx(like_attention)
    assert llmsim.run(apart(), drawn(14, 4.0, 150)).why("e2el").causes == ()


@pytest.mark.parametrize(("acceptance", "named"), [(0.05, True), (0.8, False)])
def test_drafts_that_do_not_pay_are_a_cause(acceptance: float, named: bool) -> None:
    drafts = {"method": "eagle", "num_speculative_tokens": 7, "acceptance_rate": acceptance}
    cluster = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "L40S")
    result = llmsim.run(cluster, drawn(17, 1.5, 150), speculative_config=drafts)
    answer = result.why("tpot")
    assert ("drafts that are rejected" in [one.name for one in answer.causes]) == named
    if named:
        after = next(
            one.after for one in answer.what_ifs if one.change == "no speculative decoding"
        )
        without = llmsim.run(cluster, drawn(17, 1.5, 150)).summary["p99_tpot_ms"]
        assert after == pytest.approx(without)


def test_attention_and_ffn_are_counted_apart() -> None:
    cluster = llmsim.Cluster.build("Qwen/Qwen3-30B-A3B", "H100", tp=2, attention=1, ffn=1)
    answer = llmsim.run(cluster, drawn(14, 4.0, 100)).why("e2el")
    changes = [one.change for one in answer.what_ifs]
    assert "2 attention and 2 FFN instances instead of 1 and 1" in changes
    assert not any("router" in one for one in changes), "there is one way only"


def test_an_option_of_the_run_is_a_cause_as_a_key_of_the_file_is() -> None:
    """Without graphs by an option, the remedy was a run that the option refused."""
    cluster = llmsim.Cluster.build("meta-llama/Llama-3.2-1B", "H100")
    answer = llmsim.run(cluster, drawn(3, 10.0, 200), enforce_eager=True).why("tpot")
    assert answer.causes[0].name == "host overhead"
    assert all(one.problem is None for one in answer.what_ifs)


@pytest.mark.parametrize("where", ["option", "engine", "instance"])
def test_a_key_that_a_change_removes_is_removed_wherever_it_was_given(where: str) -> None:
    fields = llmsim.Cluster.build("mistralai/Mistral-7B-v0.1", "A100").fields()
    limit = {"max_num_scheduled_tokens": 64}
    if where == "engine":
        fields["engine"] = limit
    elif where == "instance":
        instances_of(fields)[0].update(limit)
    options = limit if where == "option" else {}
    result = llmsim.run(fields, drawn(3, 2.0, 100), **options)
    [tokens] = [one for one in result.why().causes if one.name == "small token budget"]
    healthy = llmsim.run(
        llmsim.Cluster.build("mistralai/Mistral-7B-v0.1", "A100"),
        drawn(3, 2.0, 100),
        max_num_batched_tokens=8192,
    )
    best = result.summary["p99_ttft_ms"] * (1 - tokens.reduction)
    assert best == pytest.approx(healthy.summary["p99_ttft_ms"], rel=0.01)


def test_prompts_in_small_chunks_are_a_cause() -> None:
    cluster = llmsim.Cluster.build("mistralai/Mistral-7B-v0.1", "A100")
    load = "synthetic:n=200,rate=1,input=fixed:4000,output=fixed:50,seed=5"
    answer = llmsim.run(cluster, load, long_prefill_token_threshold=32).why()
    assert answer.causes[0].name == "small chunks of prompts"
    healthy = llmsim.run(cluster, load).summary["p99_ttft_ms"]
    chunks = next(one for one in answer.what_ifs if one.change.startswith("whole prompts"))
    assert chunks.after == pytest.approx(healthy)
    assert "small chunks of prompts" not in [
        one.name for one in llmsim.run(cluster, load).why().causes
    ]


def test_a_run_whose_requests_all_failed_is_refused_for_that() -> None:
    cluster = llmsim.Cluster.build("google/gemma-2-9b", "L40S", tp=2)
    load = "synthetic:n=1,rate=1,input=fixed:1000000,output=fixed:10"
    with pytest.warns(UserWarning, match="can never run"):
        result = llmsim.run(cluster, load)
    with pytest.raises(InputError, match="no request of this run has a TTFT"):
        result.why()


def test_answers_of_one_token_have_no_tpot_and_the_refusal_says_so() -> None:
    result = llmsim.run(CLUSTER, [llmsim.Request(0.0, 20, 1)], **ROOFLINE)
    with pytest.raises(InputError, match="whose requests finish with answers of several tokens"):
        result.why("tpot")


def test_the_headline_claims_the_percentile_of_those_alone_that_reach_it() -> None:
    """Of ten different requests one reaches the 99th percentile, and three are looked at."""
    load = [llmsim.Request(float(row), 100 * (row + 1), 5) for row in range(10)]
    answer = llmsim.run(CLUSTER, load, **ROOFLINE).why(what_if=0)
    assert answer.seen.reached == 1
    assert str(answer).splitlines()[0].endswith("; the slowest are 3 of 10 requests.")


@pytest.mark.filterwarnings("error")
def test_a_request_that_cannot_run_does_not_make_why_speak_of_files() -> None:
    load = [llmsim.Request(0.0, 20, 5), llmsim.Request(0.0, 2_000_000, 5)]
    with pytest.raises(UserWarning, match="; the others were simulated; take a model"):
        llmsim.run(CLUSTER, load, **ROOFLINE)


def test_too_few_slots_of_adapters_are_a_cause() -> None:
    fields = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100").fields()
    [instance] = instances_of(fields)
    instance |= {"max_loras": 1, "engine_profile": "vllm-0.33"}
    requests = drawn(8, 8.0, 300)
    requests["adapter"] = [f"a{i % 6}" for i in range(len(requests))]
    answer = llmsim.run(fields, requests).why()
    assert answer.causes[0].name == "few LoRA slots"
    instance["max_loras"] = 6
    enough = llmsim.run(fields, requests)
    assert enough.why().causes == ()
    after = next(one.after for one in answer.what_ifs if one.change == "max_loras 6 instead of 1")
    assert after == pytest.approx(enough.summary["p99_ttft_ms"])


@pytest.mark.parametrize(("gb_per_s", "named"), [(2, True), (200, False)])
def test_a_slow_host_memory_is_a_cause(gb_per_s: float, named: bool) -> None:
    fields = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100").fields()
    [instance] = instances_of(fields)
    instance["num_gpu_blocks_override"] = 3000
    fields["nodes"][0]["cpu_mem"] = {"mem_size": 512, "mem_bw": gb_per_s, "mem_latency": 0}
    load = "synthetic:n=300,rate=8,input=200,output=100,prefixes=40:tokens=4000:share=0.9,seed=3"
    causes = llmsim.run(fields, load, prefix_storage="CPU").why().causes
    assert ("slow KV tier" in [one.name for one in causes]) == named


def test_host_time_that_is_0_already_is_no_change() -> None:
    """The host of vLLM 0.24 prepares steps, and leaves no gap between them."""
    fields = llmsim.Cluster.build("meta-llama/Llama-3.2-1B", "H100").fields()
    gap = "no idle time between steps (host_gap_ns 0)"
    prepares = "steps that the host prepares in no time (prepare_ns and prepare_sequence_ns 0)"
    for host_gap_ns, expected in ((0, [prepares]), (2_000_000, [gap, prepares])):
        fields["engine"] = {"host_gap_ns": host_gap_ns, "engine_profile": "vllm-0.24"}
        answer = llmsim.run(fields, drawn(3, 2.0, 100)).why("tpot")
        tested = [one.change for one in answer.what_ifs]
        assert sorted(one for one in tested if one in (gap, prepares)) == expected
