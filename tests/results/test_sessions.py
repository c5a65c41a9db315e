"""Reasoning sessions: aTTFT to the picosecond, hits of a session's own context, affinity, files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmsim
from llmsim.config import load_profile
from llmsim.config.engine.profile import DEFAULT_PROFILE
from llmsim.config.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
ONE = ROOT / "cluster_config" / "h100_llama31_8b.json"
SEVERAL = ROOT / "cluster_config" / "h100_multi_instance.json"
APART = ROOT / "cluster_config" / "h100_llama31_8b_pd_2p1d.json"
TOOL_PS = 7_000_000_000
CAUSES = ("api", "queue", "wait", "prefill", "decode", "communication", "host", "kv_transfer")


def run(workload: Any, cluster: Path = ONE, **options: Any) -> Any:
    return llmsim.run(cluster, workload, cost_source="roofline", **options)


def trace(folder: Path, *lines: Any) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def call(new: int, answer: int, **more: Any) -> dict[str, Any]:
    return {"new_toks": new, "output_toks": answer, **more}


def session(*calls: Any, at_ns: int = 0, name: str = "s") -> dict[str, Any]:
    return {"session_id": name, "arrival_time_ns": at_ns, "sub_requests": list(calls)}


def by_hand(first_ns: int = 0) -> dict[str, Any]:
    tool = {"hidden": True, "tool_duration_ns": TOOL_PS // 1000}
    return session(call(700, 30, **tool), call(90, 20, **tool), call(50, 40), at_ns=first_ns)


def test_one_session_by_hand(tmp_path: Path) -> None:
    """aTTFT = latencies of the hidden rounds + tools + TTFT of the answer; and so do all parts."""
    result = run(trace(tmp_path, by_hand()))
    calls, one = result.requests, result.sessions.iloc[0]
    e2el, ttft = calls.e2el_ps.tolist(), calls.ttft_ps.tolist()
    assert one.attft_ps == e2el[0] + TOOL_PS + e2el[1] + TOOL_PS + ttft[2]
    assert one.session_e2el_ps == sum(e2el) + 2 * TOOL_PS == calls.finish_ps.max()
    assert one.tool_ps == 2 * TOOL_PS
    assert sum(one[f"{cause}_ps"] for cause in (*CAUSES, "preemption", "tool")) == (
        one.session_e2el_ps
    )
    # The steps of a session alone: one per prompt, which the host prepares while the devices idle,
    # and one per token after the first; nothing between.
    steps = (result.steps.end_ps - result.steps.start_ps).tolist()
    starts = [(0, 30), (30, 50), (50, 90)]
    prepared = [result.steps.start_ps[a] - calls.arrival_ps[i] for i, (a, _) in enumerate(starts)]
    assert [sum(steps[a:b]) + prepared[i] for i, (a, b) in enumerate(starts)] == e2el
    profile = load_profile(DEFAULT_PROFILE)
    before = (profile.prepare_ns + profile.prepare_sequence_ns) * 1000
    assert prepared == (calls.queued_ps - calls.arrival_ps + before).tolist()
    assert one.atpot_ps == pytest.approx((e2el[2] - ttft[2]) / 39, rel=1e-12)
    block = result.summary["sessions"]
    assert block["attft_ms"]["mean"] == block["attft_ms"]["p99"] == round(one.attft_ps / 1e9, 6)
    assert block["hidden_tokens"] == 50
    assert block["hidden_planning_throughput"]["total"] == round(50 * 1e12 / one.session_e2el_ps, 6)
    assert block["hidden_prompt_throughput"] == round(790 * 1e12 / one.session_e2el_ps, 6)


def test_lengths_alone_hit_the_blocks_of_the_previous_context(tmp_path: Path) -> None:
    """All but the last token of a round is computed; whole blocks of that are found."""
    result = run(trace(tmp_path, by_hand()))
    assert result.requests.input_tokens.tolist() == [700, 820, 890]
    assert result.requests.cached_tokens.tolist() == [0, 729 // 16 * 16, 839 // 16 * 16]
    assert result.sessions.own_hit_tokens.tolist() == [729 // 16 * 16 + 839 // 16 * 16]
    assert any("2 later calls extend their sessions" in note for note in result.notes)
    assert not any("given by lengths alone" in note for note in result.notes)
    lengths = [
        {"input_toks": 700, "output_toks": 30}, {"input_toks": 820, "output_toks": 20},
    ]  # fmt: skip
    plain = run(trace(tmp_path, session(*lengths)))
    assert plain.requests.cached_tokens.tolist() == [0, 0] and "sessions" not in plain.summary
    lengths[1]["extends"] = True
    extends = run(trace(tmp_path, session(*lengths)))
    assert extends.requests.cached_tokens.tolist() == [0, 729 // 16 * 16]
    named = {"input_toks": 64, "output_toks": 16, "input_tok_ids": list(range(64))}
    known = run(trace(tmp_path, session(named, call(50, 4)), {**named, "arrival_time_ns": 10**10}))
    assert known.requests.cached_tokens.tolist() == [0, 64, 48]


def test_pressure_preemption_and_roles_lose_nothing() -> None:
    load = "synthetic:reasoning,n=12,rate=20,rounds=uniform:1-6,new=lognormal:600,output=60"
    small = run(load, num_gpu_blocks_override=400, max_model_len=6000, check_every_step=True)
    assert int(small.sessions.preemptions.sum()) > 0
    apart = run(load, APART)
    assert apart.requests.groupby("session_id").prefill_group.nunique().max() == 1
    for result in (small, apart):
        assert set(result.summary["invariants"].values()) == {"ok"}
        table = result.sessions
        assert (table.finished_rounds == table.rounds).all()
        parts = [f"{cause}_ps" for cause in (*CAUSES, "preemption", "tool")]
        assert (table[parts].sum(axis=1) == table.session_e2el_ps).all()
        calls = result.requests
        later = calls.session_id == calls.session_id.shift()
        gap = calls.arrival_ps - calls.finish_ps.shift()
        assert (gap[later] == 0).all()


def test_sessions_stay_in_their_group_unless_told_otherwise() -> None:
    load = "synthetic:reasoning,n=9,rate=5,rounds=4,new=300,output=20"
    options = {"request_routing_policy": "RR"}
    kept = run(load, SEVERAL, **options).requests
    moved = run(load, SEVERAL, session_affinity=False, **options).requests
    assert kept.groupby("session_id").group.nunique().max() == 1
    assert kept.group.nunique() == 2
    assert moved.groupby("session_id").group.nunique().max() == 2
    assert kept.cached_tokens.sum() > moved.cached_tokens.sum()


def test_clients_keep_a_session_to_its_end() -> None:
    table = run(
        "synthetic:reasoning,n=3,rate=100,rounds=3,new=200,output=10,tool_ms=50", max_concurrency=1
    ).sessions
    assert (table.arrival_ps[1:].array >= table.finish_ps[:-1].array).all()


def test_goodput_counts_sessions(tmp_path: Path) -> None:
    path = trace(tmp_path, by_hand(), session(call(3000, 5, hidden=True), call(10, 5), name="t"))
    free = run(path).sessions.attft_ps.tolist()
    assert free[0] > free[1]
    limit = free[1] / 1e9
    good = run(path, goodput=[f"attft:{limit}"]).summary["goodput"]
    assert (good["of"], good["good"], good["share"]) == ("sessions", 1, 0.5)
    assert run(path, goodput=["ttft:1e9"]).summary["goodput"]["good"] == 5


def test_files_and_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pyarrow.parquet as pq

    from llmsim.cli import run_main

    def say(dataset: object, *options: str) -> str:
        words = ["--cluster-config", ONE, "--dataset", dataset, "--cost-source", "roofline"]
        assert (
            run_main([str(word) for word in (*words, "--run-dir", tmp_path / "run", *options)]) == 0
        )
        return capsys.readouterr().out

    assert "aTTFT" in say(trace(tmp_path, by_hand()), "--goodput", "attft:5000")
    table = pq.read_table(tmp_path / "run" / "sessions.parquet")
    assert table.num_rows == 1 and table["hidden_rounds"].to_pylist() == [2]
    assert "Hidden planning throughput" in say(trace(tmp_path, by_hand()), "-v")
    say("synthetic:n=2,rate=1,input=10,output=10")
    assert not (tmp_path / "run" / "sessions.parquet").exists()


def test_a_session_without_answer_has_no_attft(tmp_path: Path) -> None:
    path = trace(tmp_path, session(call(50, 4, phase="thinking"), call(9, 4, phase="thinking")))
    result = run(path)
    assert result.sessions.attft_ps.isna().all()
    assert result.summary["sessions"]["attft_ms"]["mean"] is None
    assert result.sessions.session_e2el_ps.notna().all()


def test_templates_are_those_of_the_paper() -> None:
    result = run("synthetic:reasoning,n=40,rate=1,template=short:0.5|heavy:0.5,tool_ms=20")
    table = result.sessions
    assert set(table.new_prompt_tokens) == {6400, 61696}
    assert set(table.hidden_tokens) == {288} and set(table.rounds) == {5}
    assert set(table.tool_ps) == {4 * 20 * 10**9}
    assert set(table.hidden_new_prompt_tokens) == {6144, 61440}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("rate=1", '"n" is missing'),
        ("n=1,rate=1,template=long", "\"template\" has no 'long'; known: short, heavy"),
        ("n=1,rate=1,template=short:x", "gives short the share 'x'"),
        ("n=1,rate=1,template=short:0", "a number above 0 is needed"),
        ("n=1,rate=1,template=short:1|short:1", "names a template twice"),
        ("n=1,rate=1,template=short,new=5", '"template" and "new" both give rounds'),
        ("n=1,rate=1,rounds=0", '"rounds=0"'),
        ("n=1,rate=1,rounds=20000", '"rounds" gives 20000, above 10000'),
        ("n=1,rate=1,tool_ms=-1", '"tool_ms=-1"'),
        ("n=1,rate=1,depth=4", 'unknown key "depth"'),
    ],
)
def test_a_bad_specification_is_said(spec: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        run(f"synthetic:reasoning,{spec}")
    assert said in str(caught.value)


def test_a_trace_reads_back(tmp_path: Path) -> None:
    from llmsim.export.jsonl import write_jsonl
    from llmsim.workload import load_trace

    path = trace(tmp_path, by_hand(), {"input_toks": 5, "output_toks": 5, "arrival_time_ns": 9})
    first = load_trace(path, known_models=[], granularity=16)
    write_jsonl(first, tmp_path / "again.jsonl")
    again = load_trace(tmp_path / "again.jsonl", known_models=[], granularity=16)
    for name in ("input_tokens", "hidden", "extends", "keys", "key_offsets", "tool_delay_ps"):
        assert np.array_equal(getattr(first, name), getattr(again, name)), name


def test_hidden_rounds_after_the_answer_are_no_planning(tmp_path: Path) -> None:
    """A session's own rate has the tokens of the time over which it is taken."""
    hidden = {"hidden": True, "tool_duration_ns": 1_000_000}
    late = session(call(300, 7, **hidden), call(16, 5), call(5, 90, hidden=True))
    result = run(trace(tmp_path, late))
    one, arrivals = result.sessions.iloc[0], result.requests.arrival_ps
    assert one.hidden_tokens == 97 and one.hidden_rounds == 2
    assert one.planning_tokens_per_s == pytest.approx(7e12 / arrivals[1], rel=1e-12)


def test_tokens_of_a_session_are_those_of_its_calls(tmp_path: Path) -> None:
    line = session(call(30, 5)) | {"input_toks": 4000}
    result = run(trace(tmp_path, line, line))
    assert result.summary["total_input_tokens"] == 60
    [note] = [one for one in result.summary["notes"] if "sub_requests" in one]
    assert '"input_toks" beside "sub_requests" is ignored' in note
