"""Devices by role: scores by hand, gates in order, matched runs, and files that are none."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from llmsim.api.cluster import Cluster
from llmsim.api.run import run
from llmsim.cli import main
from llmsim.config.errors import InfeasibleError, InputError
from llmsim.study import Allocation, Outcome, Question, RoleFigures, load_hetero, report, study
from llmsim.study.hetero import cluster_fields, devices_of
from llmsim.study.hetero_file import Role

INSTANCE = {"model_name": "Qwen/Qwen3-30B-A3B", "tp_size": 2}


def role(name: str, count: int, *devices: str) -> dict[str, Any]:
    return {"role": name, "instances": count, "devices": [*devices], "instance": INSTANCE}


def fields(*roles: dict[str, Any], **more: Any) -> dict[str, Any]:
    given = list(roles) or [role("prefill", 1, "H800"), role("decode", 1, "H800", "H20")]
    workload = "synthetic:n=20,rate=10,input=300,output=20,seed=1"
    return {"workload": workload, "roles": given, "sla": {}, **more}


def question(tmp_path: Path, *roles: dict[str, Any], **more: Any) -> Question:
    path = tmp_path / "study.json"
    path.write_text(json.dumps(fields(*roles, **more)), encoding="utf-8")
    return load_hetero(path)


def outcome(tokens_per_s: float = 100.0, compute: Mapping[str, float] | None = None) -> Outcome:
    roles = {
        name: RoleFigures({"compute": share, "memory": 1 - share, "links": 0.0}, 1.0)
        for name, share in (compute or {"prefill": 0.9, "decode": 0.1}).items()
    }
    return Outcome(10, tokens_per_s, 100.0, 10.0, roles)


@pytest.mark.parametrize(
    ("roles", "spend_ratio"),
    [
        # The three of Frontier's figure 14 with 3.49 and 1.59 USD per hour; it prints 1.16 for the
        # last one, which is none of 12 / (8 + 4 x 1.59 / 3.49).
        ([role("prefill", 1, "H800"), role("decode", 1, "H800", "H20")], 1.374),
        ([role("prefill", 2, "H800"), role("decode", 6, "H800", "H20")], 1.690),
        (
            [
                role("prefill", 4, "H800"),
                role("attention", 4, "H800", "H20"),
                role("ffn", 4, "H800"),
            ],
            1.222,
        ),
    ],
)
def test_spend_ratios_of_the_paper(tmp_path: Path, roles: list[Any], spend_ratio: float) -> None:
    found = study(question(tmp_path, *roles), lambda _: outcome())
    assert round(found.rows[1].spend_ratio, 3) == spend_ratio
    assert found.rows[1].cost_efficiency == pytest.approx(found.rows[1].spend_ratio)


def test_splits_are_scored_against_the_first_one(tmp_path: Path) -> None:
    splits = [{"prefill": 4, "decode": 4}, {"prefill": 2, "decode": 6}]
    found = study(question(tmp_path, splits=splits), lambda _: outcome())
    assert [round(row.spend_ratio, 3) for row in found.rows] == [1.0, 1.374, 1.0, 1.690]
    assert [row.label for row in found.rows][::3] == ["P:D 4:4, all H800", "P:D 2:6, D on H20"]
    assert [row.baseline for row in found.rows] == [True, False, False, False]


def gates(tmp_path: Path, changed: Outcome, base: Outcome | None = None, **more: Any) -> Any:
    def runner(allocation: Allocation) -> Outcome:
        moved = allocation.devices["decode"] == "H20"
        return changed if moved else base or outcome()

    return study(question(tmp_path, **more), runner).rows[1]


def test_gates_are_asked_in_order(tmp_path: Path) -> None:
    sla = {"p95_ttft_ms": 50.0}
    bound = {"prefill": 0.9, "decode": 0.7}
    both = gates(tmp_path, outcome(10.0), outcome(compute=bound), sla=sla)
    assert both.gate_failed == "alignment" and "limits 70 % of its" in both.why
    assert both.classes == {"prefill": "compute", "decode": "compute"}
    late = gates(tmp_path, outcome(10.0), sla=sla)
    assert (late.gate_failed, late.why) == ("latency", "p95_ttft_ms is 100.0 ms, above 50 ms")
    poor = gates(tmp_path, outcome(78.0))
    assert poor.gate_failed == "efficiency" and "CE is 1.072, not above 1.08" in poor.why
    assert gates(tmp_path, outcome(79.0)).gate_failed is None
    fewer = Outcome(9, 100.0, 1.0, 1.0, outcome().roles)
    assert gates(tmp_path, fewer).why == "9 requests are served, 10 by the baseline"
    assert gates(tmp_path, Outcome(problem="no room")).gate_failed == "fits"


def test_a_role_that_the_move_slows_by_more_than_it_saves_is_compute_bound(tmp_path: Path) -> None:
    slow = outcome()
    decode = slow.roles["decode"]
    for factor, failed in ((2.19, None), (2.20, "alignment")):  # 3.49 / 1.59 = 2.195
        roles = {**slow.roles, "decode": RoleFigures(decode.limits, factor)}
        row = gates(tmp_path, Outcome(10, 100.0, 1.0, 1.0, roles))
        assert row.gate_failed == failed
        assert row.slowdown == {"prefill": 1.0, "decode": factor}
        assert row.classes["decode"] == ("compute" if failed else "memory")


def test_each_run_is_made_once_and_the_matched_one_is_the_same_split(tmp_path: Path) -> None:
    seen: list[Allocation] = []

    def runner(allocation: Allocation) -> Outcome:
        seen.append(allocation)
        share = 0.9 if allocation.counts["decode"] == 3 else 0.1
        return outcome(compute={"prefill": 0.0, "decode": share})

    splits = [{"prefill": 1, "decode": 1}, {"prefill": 1, "decode": 3}]
    rows = study(question(tmp_path, splits=splits), runner).rows
    assert len(seen) == 4
    assert [row.gate_failed for row in rows] == [None, None, "efficiency", "alignment"]


def test_a_study_of_real_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = question(tmp_path, sla={"p95_ttft_ms": 1000, "p95_tpot_ms": 100})
    picture = tmp_path / "scatter.svg"
    assert main(["study", "hetero", str(asked.path), "--json", "--plot", str(picture)]) == 0
    printed = json.loads(capsys.readouterr().out)
    found = study(asked)
    assert printed["rows"] == json.loads(json.dumps([row.as_json() for row in found.rows]))
    row = printed["rows"][1]
    assert {"allocation", "sr", "ce", "classes", "p95", "gate_failed"} <= row.keys()
    assert row["allocation"] == {"prefill": "H800", "decode": "H20"}
    by_hand = row["sr"] * row["tokens_per_s"] / printed["rows"][0]["tokens_per_s"]
    assert row["ce"] == pytest.approx(by_hand)
    assert b"<svg" in picture.read_bytes()
    assert "P:D 1:1, D on H20 | 10.16 | 1.374" in report.text(found)


def test_operator_limits_hold_all_the_time_of_operators() -> None:
    """A prompt on many tokens is limited by arithmetic, decodes of one sequence by memory."""
    load = {"prefill": (8192, 1), "decode": (16, 200)}
    shares = {}
    for name, (tokens_in, tokens_out) in load.items():
        workload = f"synthetic:n=1,rate=1,input={tokens_in},output={tokens_out},seed=1"
        result = run("cluster_config/h100_llama31_8b.json", workload, cost_source="roofline")
        limits = result.operator_limits
        shares[name] = limits["compute_ps"].sum() / limits["time_ps"].sum()
        busy = int(result.groups["busy_ps"].sum())
        assert 0.9 * busy < limits["time_ps"].sum() <= busy
    assert shares["prefill"] > 0.9 and shares["decode"] < 0.1


def test_nodes_hold_one_role(tmp_path: Path) -> None:
    asked = question(tmp_path, role("prefill", 5, "H20"), role("decode", 2, "H800"))
    made = cluster_fields(
        asked, Allocation(0, asked.splits[0], {"prefill": "H20", "decode": "H800"})
    )
    sizes = [(len(node["instances"]), node["instances"][0]["hardware"]) for node in made["nodes"]]
    assert sizes == [(4, "H20"), (1, "H20"), (2, "H800")]
    assert made["link_bw"] == [200.0, 200.0, 50.0]


def test_devices_of_an_instance() -> None:
    def devices(name: Any, **keys: Any) -> int:
        return devices_of(Role(role=name, devices=["H800"], instance={"model_name": "m", **keys}))

    assert devices("colocated", tp_size=4, pp_size=2) == 8
    assert devices("decode", attn_tp_size=2, attn_dp_size=4, ffn_tp_size=1, ffn_ep_size=8) == 8
    assert devices("attention", attn_tp_size=1, attn_dp_size=8) == 8
    assert devices("ffn", ffn_tp_size=2, ffn_ep_size=4, pp_size=2) == 16


def test_attention_and_ffn_are_roles(tmp_path: Path) -> None:
    """Both have a class of their own, from the time that their devices compute for a token."""
    host = {"prepare_ns": 0, "launch_ns": 0}
    model = {"model_name": INSTANCE["model_name"], **host}
    roles = [
        {"role": "prefill", "devices": ["H800"], "instance": {**INSTANCE, **host}},
        {
            "role": "attention",
            "devices": ["H800", "H20"],
            "instance": {**model, "attn_tp_size": 1, "attn_dp_size": 2, "afd_micro_batches": 1},
        },
        {
            "role": "ffn",
            "devices": ["H800", "H20"],
            "instance": {**model, "ffn_tp_size": 1, "ffn_ep_size": 2},
        },
    ]
    load = "synthetic:n=20,rate=60,input=300,output=60,seed=1"
    options = {"cost_source": "roofline"}
    found = study(question(tmp_path, *roles, options=options, workload=load))
    first, ffn, attention, both = found.rows
    assert [row.spend_ratio for row in found.rows] == pytest.approx(
        [1, *[3 * 3.49 / (2 * 3.49 + 1.59)] * 2, 3 * 3.49 / (3.49 + 2 * 1.59)]
    )
    for row in found.rows:
        assert set(row.classes) == {"prefill", "attention", "ffn"}
        assert row.classes["attention"] == row.classes["ffn"] == "memory"
    # At a few tokens bandwidth decides: 3.35 TB/s to 4.0.
    assert 3.35 / 4.0 < ffn.slowdown["ffn"] < 1 and ffn.slowdown["attention"] == 1
    assert 3.35 / 4.0 < attention.slowdown["attention"] < 1 and attention.slowdown["ffn"] == 1
    assert both.slowdown["ffn"] == pytest.approx(ffn.slowdown["ffn"], rel=0.05)
    assert first.slowdown == {"prefill": 1.0, "attention": 1.0, "ffn": 1.0}


def test_rounds_without_requests_are_no_device_time_of_tokens(tmp_path: Path) -> None:
    """Ranks that share experts end each answer with rounds for nobody: more pauses, more rounds."""
    ranks = {**INSTANCE, "tp_size": 1, "dp_group": "experts"}
    pair = [{"role": "colocated", "instances": 2, "devices": ["H800", "H20"], "instance": ranks}]
    found = []
    for rate in (0.2, 0.1):
        load = f"synthetic:n=6,rate={rate},input=fixed:300,output=fixed:20,seed=1"
        asked = question(tmp_path, *pair, options={"cost_source": "roofline"}, workload=load)
        first = cluster_fields(asked, Allocation(0, asked.splits[0], {"colocated": "H800"}))
        result = run(Cluster.of(first, "x"), load, cost_source="roofline")
        assert (result.groups["dummy_ps"] > 0.5 * result.groups["computing_ps"]).any()
        found.append(study(asked).rows[1].slowdown["colocated"])
    assert found[0] == pytest.approx(found[1], rel=0.02)
    serving_ps = (result.groups["computing_ps"] - result.groups["dummy_ps"]).sum()
    steps = result.steps
    with_requests = steps[steps["sequences"] > 0]
    assert serving_ps == (with_requests["end_ps"] - with_requests["start_ps"]).sum()


BROKEN = [
    ({"roles": []}, "roles is empty"),
    ({"roles": 3}, "roles is 3; give a list"),
    ({"workload": None}, "workload is null; give a trace file"),
    ({"roles": [role("decode", 0, "H800")]}, "roles[0].instances is 0; it must be from 1 to"),
    ({"roles": [role("decode", 1)]}, "roles[0].devices is empty"),
    ({"roles": [role("decode", 1, "H800", "H800")]}, 'roles[0].devices has "H800" twice'),
    ({"roles": [role("decode", 1, "H8000")]}, 'there is no data sheet of "H8000"'),
    ({"roles": [role("decode", 1, "Gaudi-3")]}, "Gaudi-3 has no price; give prices.Gaudi-3"),
    ({"roles": [role("decode", 1, "H20"), role("decode", 1, "H20")]}, 'roles has "decode" twice'),
    ({"roles": [role("colocated", 1, "H20"), role("decode", 1, "H20")]}, '"colocated" beside'),
    ({"roles": [role("encode", 1, "H20")]}, "Invalid enum value 'encode' - at $.roles[0].role"),
    (
        {"roles": [{**role("decode", 1, "H20"), "instance": {"tp_size": 2}}]},
        "roles[0].instance.model_name is missing",
    ),
    (
        {"roles": [{**role("decode", 1, "H20"), "instance": {**INSTANCE, "hardware": "H20"}}]},
        "roles[0].instance.hardware cannot be given here",
    ),
    ({"splits": [{"prefill": 1}]}, "splits[0] has prefill; it must give instances of decode, pre"),
    ({"splits": [{"prefill": 1, "decode": 0}]}, "splits[0].decode is 0; it must be from 1"),
    ({"sla": {"p95_ttft_ms": -1}}, "sla.p95_ttft_ms is -1.0; it must be"),
    ({"sla": {"p99_ttft_ms": 1}}, "unknown field sla.p99_ttft_ms (did you mean"),
    ({"min_ce": 0}, "min_ce is 0.0; it must be above 0"),
    ({"compute_share": 1}, "compute_share is 1.0; it must be between 0 and 1"),
    ({"devices_per_node": 0}, "devices_per_node is 0; it must be from 1"),
    ({"cluster": {"nodes": []}}, "cluster.nodes cannot be given here"),
    ({"prices": {"H20": 0}}, "prices.H20 is 0.0; it must be in USD per device and hour"),
    ({"prices": {"H20": "cheap"}}, 'prices.H20 is "cheap"; give a number'),
]


@pytest.mark.parametrize(("change", "said"), BROKEN)
def test_what_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], said: str
) -> None:
    path = tmp_path / "study.json"
    path.write_text(json.dumps(fields() | change), encoding="utf-8")
    assert main(["study", "hetero", str(path), "--json"]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert str(path) in printed.err and said in printed.err


def test_a_missing_key_and_a_file_that_is_none(tmp_path: Path) -> None:
    for key in ("workload", "roles", "sla"):
        path = tmp_path / "study.json"
        path.write_text(json.dumps({k: v for k, v in fields().items() if k != key}))
        with pytest.raises(InputError, match=f": {key} is missing; "):
            load_hetero(path)
    for text, said in (("{", "not valid JSON"), ("[]", "the file is .*; give a mapping")):
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            load_hetero(path)
    with pytest.raises(InputError, match="cannot be read"):
        load_hetero(tmp_path / "none.json")


def test_a_baseline_that_cannot_run_ends_the_study(tmp_path: Path) -> None:
    with pytest.raises(InfeasibleError, match="the baseline cannot run: too large"):
        study(question(tmp_path), lambda _: Outcome(problem="too large"))


def test_numbers_of_points_do_not_lie_on_each_other() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5))
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    points = [(1.0, 1.0), (1.0, 1.001), (1.05, 1.02), (1.06, 0.97), (1.0, 0.94), (2.0, 2.0)]
    axes.scatter(*zip(*points, strict=True))
    axes.margins(0.1)
    report._number(axes, points)
    assert [text.get_text() for text in axes.texts] == ["1, 2", "3", "4", "5", "6"]
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in axes.texts]
    pairs = [(one, other) for i, one in enumerate(boxes) for other in boxes[:i]]
    assert not any(one.overlaps(other) for one, other in pairs)
    inside = axes.get_window_extent()
    assert all(inside.x0 <= box.x0 and box.x1 <= inside.x1 for box in boxes)
