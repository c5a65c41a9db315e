"""`llmsim size`: its answer is that of trying everything, and what it prints and writes holds."""

import itertools
import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import yaml

import llmsim
from llmsim.cli import main
from llmsim.config.errors import InputError
from llmsim.lowering import LoweringOptions
from llmsim.plurals import plural
from llmsim.sizing.alone import missed_alone
from llmsim.sizing.answer import Answer, front_name, text
from llmsim.sizing.bounds import REASONS, fits, pruned_reason
from llmsim.sizing.capacity import FEWEST_VERIFIED, able, capacity, misses
from llmsim.sizing.emit import emit, not_written
from llmsim.sizing.load import RATE, Load
from llmsim.sizing.measure import Bench, Measured
from llmsim.sizing.pictures import html, plot
from llmsim.sizing.plan import Plan, Pool, Shape
from llmsim.sizing.search import instances, search
from llmsim.sizing.search.cheaper import largest_cheaper
from llmsim.sizing.search.counts import grown
from llmsim.sizing.search.found import Candidate, layout_of
from llmsim.sizing.search.measuring import BOUND, PARTNER
from llmsim.sizing.search.pairs import starts_of
from llmsim.sizing.search.question import Costs, Question
from llmsim.sizing.shapes import units
from llmsim.sizing.size import size
from llmsim.sizing.targets import Miss, Targets, beyond_target
from llmsim.workload import load_dataset

MODEL = "Qwen/Qwen3-8B"
TRACE = str(Path(__file__).resolve().parents[2] / "dataset" / "example_10.jsonl")
ASKED: dict[str, Any] = {
    "rate": 70.0,
    "input": "lognormal:600",
    "output_tokens": "lognormal:100",
    "slo": "ttft:250,tpot:16",
    "devices_per_node": 4,
}


@pytest.fixture(scope="module")
def answer() -> Answer:
    return size(MODEL, "H100", **ASKED)


def everything(question: Question, most: int) -> list[Candidate]:
    """Every deployment of at most so many devices that meets the targets."""
    bench, found = Bench(), []
    for plan in wholes(question):
        for counts in _counts(len(plan.pools), most):
            wanted = plan.with_counts(*counts)
            if wanted.devices > most:
                continue
            run, missed, problem = able(
                bench,
                wanted,
                question.load,
                question.targets,
                fewest=FEWEST_VERIFIED,
                stops=question.targets.limits,
            )
            one = Candidate(wanted, run, tuple(missed), problem)
            found += [one] if one.meets else []
    return found


def wholes(question: Question) -> list[Plan]:
    """One instance of each layout, and one of each role for every pair of layouts."""
    found: list[Plan] = []
    for device, architecture in itertools.product(question.devices, question.architectures):
        split = (question.devices_per_node, question.server)
        made = list(units(question.model, device, architecture, *split))
        found += [plan for plan, role in made if role == "both"]
        prefills = [plan for plan, role in made if role == "prefill"]
        decodes = [plan for plan, role in made if role == "decode"]
        for one, other in itertools.product(prefills, decodes):
            found.append(replace(one, pools=(one.pools[0], other.pools[1])))
    return found


def _counts(pools: int, most: int) -> list[tuple[int, ...]]:
    if pools == 1:
        return [(n,) for n in range(1, most + 1)]
    return [(p, d) for p in range(1, most) for d in range(1, most - p + 1)]


def test_the_best_is_that_of_an_exhaustive_search(answer: Answer) -> None:
    best = answer.best
    assert best is not None
    question = answer.found.question
    meeting = everything(question, best.plan.devices)
    assert min(one.plan.devices for one in meeting) == best.plan.devices
    least = [one.plan for one in meeting if one.plan.devices == best.plan.devices]
    assert best.plan in least


QUESTIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "faster prefills are too many for one decode": (
        "Qwen/Qwen3-8B",
        "L40S",
        {"concurrency": 20, "slo": "ttft:5000,tpot:20", "output_tokens": "fixed:20", "seed": 109}
        | {"input": "lognormal:6000", "devices_per_node": 4},
    ),
    "slow prompts spare the decodes": (
        "Qwen/Qwen3-30B-A3B",
        "H20",
        {"concurrency": 50, "slo": "ttft:30000,tpot:20", "output_tokens": "fixed:300"}
        | {"input": "lognormal:4000", "devices_per_node": 4, "seed": 1024},
    ),
    "slow answers spare the prefills": (
        "Qwen/Qwen3-30B-A3B",
        "H20",
        {"concurrency": 50, "slo": "ttft:20000,tpot:10", "output_tokens": "lognormal:200"}
        | {"input": "lognormal:4000", "devices_per_node": 4, "seed": 1030},
    ),
    "both in one instance": (
        MODEL,
        "L40S",
        {"concurrency": 20, "slo": "ttft:800,tpot:50", "output_tokens": "lognormal:100"}
        | {"input": "fixed:1500", "devices_per_node": 4},
    ),
    "a rate within tight targets": (
        MODEL,
        "A100",
        {"rate": 12.0, "slo": "ttft:500,tpot:16", "output_tokens": "lognormal:100"}
        | {"input": "lognormal:800", "devices_per_node": 4},
    ),
    "a rate of long prompts": (
        MODEL,
        "H20",
        {"rate": 2.0, "slo": "ttft:6000,tpot:12", "output_tokens": "fixed:100"}
        | {"input": "lognormal:3000", "devices_per_node": 4},
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_no_deployment_with_fewer_devices_meets_the_targets(name: str) -> None:
    model, device, asked = QUESTIONS[name]
    found = size(model, device, **asked)
    assert found.best is not None
    fewer = everything(found.found.question, found.best.plan.devices - 1)
    assert [one.plan.label for one in fewer] == []
    assert found.best.plan.devices > 1, "or there is nothing to miss"


LONG = {"input": "lognormal:1000", "slo": "ttft:3000,tpot:60"}
EMITTED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "rate": (MODEL, "H100", ASKED),
    "rate, with a cache below the model's context": ("Qwen/Qwen3-32B", "H100", LONG | {"rate": 1}),
    "closed loop": (
        "Qwen/Qwen3-32B",
        "H100",
        {"concurrency": 20, "slo": "ttft:8000,tpot:30", "architecture": "pd"}
        | {"input": "lognormal:2000", "devices_per_node": 2},
    ),
    "trace": (
        MODEL,
        "H100",
        {"dataset": "dataset/chat_h100_300.jsonl", "slo": "ttft:500,tpot:30"}
        | {"architecture": "colocated", "devices_per_node": 1},
    ),
}


@pytest.mark.parametrize("kind", EMITTED)
def test_the_headline_is_a_run_of_the_emitted_files(
    kind: str, answer: Answer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, device, asked = EMITTED[kind]
    found = answer if kind == "rate" else size(model, device, **asked)
    best = found.best
    assert best is not None and best.run is not None
    assert {path.name for path in found.emit(tmp_path)} >= {"llmsim.sh", "cluster.json", "vllm.sh"}
    _, _, command = (tmp_path / "llmsim.sh").read_text().splitlines()
    words = [one.replace("$(dirname $0)", str(tmp_path)) for one in shlex.split(command)]
    assert words[0] == "llmsim" and words[-1] == "$@"
    assert main([*words[1:-1], "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    at = best.run.at(99.0)
    for metric in ("ttft", "tpot", "e2el"):
        assert at[metric] == pytest.approx(summary[f"p99_{metric}_ms"], rel=1e-4)
    assert best.run.output_tok_s == pytest.approx(summary["output_throughput"], rel=1e-4)
    sources = found.as_json()["best"]["cost_sources"]
    for name in ("by_source", "by_provenance"):
        assert sources[name] == pytest.approx(summary["sources"][name], abs=1e-4)
    assert not any("would not start" in note for note in summary["notes"])
    if "cache" in kind:
        assert "max_model_len" in (tmp_path / "cluster.json").read_text()


def test_all_emitted_files_have_one_longest_request(tmp_path: Path) -> None:
    """The KV of one H100 holds 34,400 of the model's 40,960 tokens, that of two all of them."""
    pools = Pool(Shape(1), 2, "prefill"), Pool(Shape(2), 1, "decode")
    emit(Plan("Qwen/Qwen3-32B", "H100", pools), tmp_path)
    [node] = json.loads((tmp_path / "cluster.json").read_text())["nodes"]
    longest = {one["pd_type"]: one.get("max_model_len") for one in node["instances"]}
    assert longest == {"prefill": 34400, "decode": None}
    lines = [one for one in (tmp_path / "vllm.sh").read_text().splitlines() if " serve " in one]
    assert ["--max-model-len 34400" in one for one in lines] == [True, True, False]


def test_more_load_misses_the_binding_target(answer: Answer) -> None:
    binding, best = answer.binding, answer.best
    assert binding is not None and best is not None and answer.headroom is not None
    question = answer.found.question
    bench = Bench()
    load = question.load.scaled(binding["at_level"])
    _, missed, _ = able(bench, best.plan, load, question.targets, fewest=FEWEST_VERIFIED)
    assert binding["metric"] in [one.metric for one in missed]
    assert answer.found.beyond is not None
    grown = question.load.scaled(answer.found.beyond.level)
    assert grown.level == pytest.approx(question.load.level * (1 + answer.headroom))
    _, missed, _ = able(bench, best.plan, grown, question.targets, fewest=FEWEST_VERIFIED)
    assert not missed


def test_the_next_ones_say_what_they_miss(answer: Answer) -> None:
    best = answer.best
    assert best is not None
    assert 1 <= len(answer.next) <= 3
    for one, missed in answer.next:
        if one.meets:
            assert one.plan.devices >= best.plan.devices and ("+" in missed or "as much" in missed)
        else:
            assert one.plan.devices < best.plan.devices and "over" in missed


def test_the_front_is_drawn_with_its_options(answer: Answer, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    front = answer.pareto()
    axes = answer.plot.pareto()
    ran = [*answer.found.meeting, *answer.found.missing]
    for one in front:
        [misses] = [
            [miss.metric.upper() for miss in other.misses]
            for other in ran
            if other.plan.label == one["layout"] and dict(other.plan.engine) == one["options"]
        ]
        assert one["misses"] == misses
        assert front_name(one).endswith(f" (misses {', '.join(misses)})") == bool(misses)
    assert any(one["misses"] for one in front) and not all(one["misses"] for one in front)
    assert list(axes.lines[1].get_ydata()) == sorted(
        (one["output_tok_s_per_device"] for one in front), reverse=True
    )
    points = [one.get_text() for one in axes.texts]
    below = axes.get_xlabel().split("\n")[2:]  # names of points that are too near for them
    names = [line.split(maxsplit=1)[1] for line in below] or points
    assert len(set(names)) == len(names) == len(front)
    if below:
        assert points[0].startswith("1") and points[-1].endswith(str(len(front)))
    shown = str(text(answer))
    assert all(name in shown for name in names)
    plot(answer, tmp_path / "front.svg")
    assert (tmp_path / "front.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_a_cheaper_deployment_says_what_it_misses(answer: Answer) -> None:
    best = answer.best
    assert best is not None
    smaller = [
        one for one in answer.found.missing if one.misses and one.plan.devices < best.plan.devices
    ]
    assert smaller and answer.next[0][0] == smaller[0] and "over" in answer.next[0][1]


def test_json_has_the_keys_of_the_interface(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--model", MODEL, "--device", "H100", "--rate", "2", "--slo", "ttft:500,tpot:30"]
    given += ["--input", "fixed:200", "--output-tokens", "fixed:20", "--devices-per-node", "1"]
    given += ["--architecture", "colocated", "--jobs", "1"]
    assert main(["size", *given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"best", "next", "binding", "pruned", "evaluated"} <= found.keys()
    needed = {"devices", "layout", "options", "ttft_ms", "tpot_ms", "output_tok_s", "usd_per_h"}
    assert needed | {"headroom", "interval"} <= found["best"].keys()
    assert found["best"]["devices"] == 1 and found["best"]["usd_per_h"] == 3.99
    assert main(["size", *given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found


def test_the_best_has_what_real_servers_like_its_run_have(answer: Answer, tmp_path: Path) -> None:
    """The interval of the run whose command `--emit` writes."""
    answer.emit(tmp_path)
    given = ["--cluster-config", str(tmp_path / "cluster.json"), *answer.run_arguments]
    assert main(["run", *given, "--run-dir", str(tmp_path / "run"), "--quiet"]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    best = answer.as_json()["best"]
    assert best["system_error"] == summary["system_error"]
    assert "9 in 10 real servers: " in text(answer)


@pytest.mark.parametrize(("option", "name"), [("--plot", "front.xyz"), ("--html", "page.txt")])
def test_a_file_of_another_kind_is_refused_before_any_run(
    option: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--model", MODEL, "--device", "H100", "--rate", "2", "--slo", "ttft:500"]
    given += ["--emit", str(tmp_path / "emitted"), option, str(tmp_path / name)]
    assert main(["size", *given]) == 2
    captured = capsys.readouterr()
    assert option in captured.err and "ends in" in captured.err and not captured.out
    assert not (tmp_path / name).exists()


def test_nothing_meets_impossible_targets(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--model", MODEL, "--device", "H100", "--rate", "2", "--jobs", "1"]
    assert main(["size", *given, "--slo", "tpot:0.1"]) == 5
    shown = capsys.readouterr().out
    assert (
        shown.startswith("Nothing serves")
        and "reading the weights of a step takes longer than the TPOT target (" in shown
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rate": None}, "rate, concurrency and dataset"),
        ({"concurrency": 3}, "rate and concurrency"),
        ({"rate": -1.0}, "rate is -1"),
        ({"slo": "ttf:100"}, "slo"),
        ({"percentile": 0}, "percentile is 0"),
        ({"max_devices": 0}, "max_devices is 0"),
        ({"architecture": "colocate"}, "did you mean"),
        ({"input": "fixed:-3"}, "input"),
        ({"rate": None, "dataset": TRACE, "input": "fixed:9"}, "input is fixed:9 beside a dataset"),
        ({"rate": None, "dataset": TRACE, "input": None}, "output_tokens is .* beside a dataset"),
        ({"engine_profile": "sglan-0.5"}, "is not known"),
        ({"engine_profile": "transformers-5"}, "servers of vllm and sglang"),
        ({"engine_profile": "sglang-0.5.23", "architecture": "afd"}, "vLLM's scheduler"),
    ],
)
def test_what_cannot_be_asked_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        size(MODEL, "H100", **{**ASKED, **change})


def test_sglang_is_planned_by_its_own_rules(answer: Answer, tmp_path: Path) -> None:
    found = size(MODEL, "H100", **ASKED, engine_profile="sglang-0.5.23")
    best = found.best
    assert best is not None and best.run is not None
    assert everything(found.found.question, best.plan.devices - 1) == []
    assert answer.best is not None and best.run.output_tok_s != answer.best.run.output_tok_s
    group = best.plan.deployment().groups[0]
    assert (group.engine.scheduler, group.engine.engine_profile) == ("sglang", "sglang-0.5.23")
    assert found.as_json()["best"]["options"]["engine_profile"] == "sglang-0.5.23"
    names = [path.name for path in found.emit(tmp_path)]
    assert not_written(best.plan).endswith("are not written for SGLang")
    assert sorted(names) == ["cluster.json", "llmsim.sh", "sglang.sh"]
    assert "vLLM's rules" not in (tmp_path / "sglang.sh").read_text()


def test_attention_and_ffn_apart(tmp_path: Path) -> None:
    asked = {**ASKED, "rate": 30.0, "slo": "ttft:400,tpot:20", "architecture": "afd"}
    found = size(MODEL, "H100", **asked)
    assert found.best is not None and found.best.plan.architecture == "afd"
    assert everything(found.found.question, found.best.plan.devices - 1) == []
    over_nodes = found.found.pruned.counts[BOUND]
    assert over_nodes, "layouts of whole nodes cannot come near the best one"
    assert [path.name for path in emit(found.best.plan, tmp_path)] == ["cluster.json"]
    assert "no server of theirs starts this deployment" in not_written(found.best.plan)


def test_a_role_is_measured_beside_one_that_fits() -> None:
    """A prefill or decode instance of a large model needs a partner that holds the model."""
    options = LoweringOptions()
    made = list(units("deepseek-ai/DeepSeek-V3", "H200", "afd", 8))
    for wanted, of_partner in (("prefill", 1), ("decode", 0)):
        partners = {plan.pools[of_partner] for plan, role in made if role == wanted}
        [partner] = partners
        assert fits(
            Plan("deepseek-ai/DeepSeek-V3", "H200", (replace(partner, role=None),)), options
        )
        assert any(fits(plan, options) for plan, role in made if role == wanted)


def test_a_prefill_instance_is_measured_beside_as_many_as_it_keeps_busy() -> None:
    """Two decode instances of a model that nearly fills their memory have no room for the prompts
    of one prefill instance, which took a third of its load beside them.
    """
    asked: dict[str, Any] = {"input": "lognormal:2000", "output_tokens": "lognormal:500"}
    asked |= {"architecture": "pd", "max_devices": 4}
    found = size("openai/gpt-oss-120b", "H100", rate=15, slo="ttft:1000,tpot:30", **asked)
    assert found.best is not None
    assert found.best.plan.label == "1 x TP1 prefill + 1 x TP2 decode"


def test_roles_of_different_layouts_are_found_where_two_alike_are_too_many_devices() -> None:
    """Two instances of TP2 have four devices, and one of TP1 beside one of TP2 has three."""
    asked: dict[str, Any] = {"input": "lognormal:2000", "output_tokens": "lognormal:500"}
    asked |= {"architecture": "pd", "max_devices": 3}
    found = size("openai/gpt-oss-120b", "H100", rate=15, slo="ttft:1000,tpot:30", **asked)
    assert found.best is not None
    assert found.best.plan.label == "1 x TP1 prefill + 1 x TP2 decode"


def test_architectures_share_their_prefill_instances() -> None:
    asked = {**ASKED, "architecture": "pd,afd", "input": "fixed:300", "output_tokens": "fixed:20"}
    found = size("Qwen/Qwen3-30B-A3B", "H100", **asked).found
    plans = [one.plan for one in (*found.meeting, *found.missing)]
    assert len(plans) == len(set(plans))
    prefills = [one.plan.pools[0] for one in found.units if one.role == "prefill"]
    assert len(prefills) == len(set(prefills))


def test_levels_below_the_floor_are_not_tried() -> None:
    bench, tried = Bench(), []
    measure = bench.measure

    def counted(plan: Plan, load: Load, level: float, *more: Any) -> Measured:
        tried.append(level)
        return measure(plan, load, level, *more)

    bench.measure = counted  # type: ignore[method-assign]
    plan = Plan(MODEL, "H100", (Pool(Shape(), 1),))
    load = Load(RATE, 1.0, "fixed:1000", "fixed:100")
    late = Targets.parse("ttft:1", 99)
    found = capacity(bench, plan, load, late, 40.0, floor=15.0)
    assert found.level == 0 and found.beyond is not None
    assert tried == [40.0, 20.0, 15.0]
    met = Targets.parse("ttft:500", 99)
    free, bounded = (capacity(bench, plan, load, met, 40.0, floor=least) for least in (1e-3, 15.0))
    assert free.level > 15 and bounded == free


def test_a_layout_beyond_the_first_ones_is_found_if_it_is_cheaper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two H100 do where more were estimated, from one alone, and cost less than two H200, the first
    estimate.
    """
    asked = {**ASKED, "rate": 60.0, "architecture": "colocated"}
    whole = size(MODEL, "H100,H200", **asked)
    monkeypatch.setattr(instances, "TOGETHER", 1)
    monkeypatch.setattr(search, "MOST_VERIFIED", 1)
    few = size(MODEL, "H100,H200", **asked)
    assert whole.best is not None and few.best is not None
    costs = Costs(few.prices)
    assert costs(few.best.plan) == costs(whole.best.plan)
    first = starts_of(few.found.question, few.found.units, costs)[0]
    assert layout_of(few.best.plan) != layout_of(first)


def test_cheaper_numbers_of_instances_are_the_largest_ones() -> None:
    """Of a layout estimated at 3 prefill and 4 decode instances, below the price of six."""
    pools = Pool(Shape(), 3, "prefill"), Pool(Shape(), 4, "decode")
    plan = Plan(MODEL, "H100", pools)
    best = Plan(MODEL, "H100", (Pool(Shape(), 6),))
    made = largest_cheaper(best, [plan], Costs({}))
    assert sorted(tuple(pool.count for pool in one.pools) for one in made) == [(2, 3), (3, 2)]
    nine = Plan(MODEL, "H100", (Pool(Shape(), 9),))
    [alone] = largest_cheaper(best, [nine], Costs({}))
    assert alone.devices == 5
    many = Plan(MODEL, "H100", (Pool(Shape(), 400, "prefill"), Pool(Shape(), 300, "decode")))
    best = Plan(MODEL, "H100", (Pool(Shape(), 600),))
    assert 1 < len(list(largest_cheaper(best, [many], Costs({})))) <= 9


def _question() -> Question:
    load = Load(RATE, 1.0, "fixed:1000", "fixed:100")
    return Question(MODEL, ("H100",), load, Targets.parse("ttft:1000", 99))


@pytest.mark.parametrize("helps", [0, 1])
def test_the_role_that_helps_grows(helps: int) -> None:
    """Prompts wait where decodes have no room, so that TTFT is missed whichever role is short."""
    pools = Pool(Shape(), 2, "prefill"), Pool(Shape(), 2, "decode")
    plan, question = Plan(MODEL, "H100", pools), _question()
    tried: list[tuple[int, ...]] = []

    def run(counts: tuple[int, ...]) -> Candidate:
        tried.append(counts)
        complete = Measured(1.0, 1, 1, 1.0, 1, ())
        late = () if counts[helps] >= 4 else (Miss("ttft", 2000.0, 1000.0),)
        return Candidate(plan.with_counts(*counts), complete, late)

    counts_that_meet = grown(cast(Any, run), (2, 2), plan, question)
    assert counts_that_meet is not None and counts_that_meet[helps] == 4
    assert len(tried) <= 5


def test_at_the_limit_of_devices_the_role_that_helps_takes_the_place_of_the_other() -> None:
    """Decodes are said to decide the end-to-end latency; here a second prefill instance does."""
    pools = Pool(Shape(), 1, "prefill"), Pool(Shape(), 2, "decode")
    plan, question = Plan(MODEL, "H100", pools), replace(_question(), max_devices=4)

    def run(counts: tuple[int, ...]) -> Candidate:
        complete = Measured(1.0, 1, 1, 1.0, 1, ())
        late = () if counts[0] >= 2 else (Miss("e2el", 2000.0, 1000.0),)
        return Candidate(plan.with_counts(*counts), complete, late)

    assert grown(cast(Any, run), (1, 2), plan, question) == (2, 2)


CLASSES: dict[str, Any] = {
    "classes": "chat:0.6|batch:0.4",
    "input": "lognormal:300|fixed:3000",
    "output_tokens": "fixed:60|fixed:300",
}


def test_every_class_meets_its_own_targets(capsys: pytest.CaptureFixture[str]) -> None:
    slo = "chat=ttft:120,tpot:14;batch=e2el:9000"
    given = ["--rate", "30", "--jobs", "1", "--classes", CLASSES["classes"], "--slo", slo]
    given += ["--input", CLASSES["input"], "--output-tokens", CLASSES["output_tokens"]]
    given += ["--devices-per-node", "4", "--architecture", "colocated", "--json"]
    assert main(["size", "--model", MODEL, "--device", "H100", *given]) == 0
    found = json.loads(capsys.readouterr().out)
    best = found["best"]
    assert best["classes"]["chat"]["ttft_ms"]["p99"] <= 120
    assert best["classes"]["chat"]["tpot_ms"]["p99"] <= 14
    assert best["classes"]["batch"]["e2el_ms"]["p99"] <= 9000
    assert best["ttft_ms"]["p99"] > best["classes"]["chat"]["ttft_ms"]["p50"]
    assert found["classes_targets_ms"]["batch"] == {"e2el": 9000.0}
    alike = {"rate": 30.0, "slo": "ttft:120,tpot:14", "architecture": "colocated"}
    strict = size(MODEL, "H100", **{**ASKED, **CLASSES, **alike})
    assert strict.best is None or strict.best.plan.devices >= best["devices"]
    plan = Plan(MODEL, "H100", (Pool(Shape(best["devices"]), 1),), devices_per_node=4)
    load = Load(RATE, 30.0, CLASSES["input"], CLASSES["output_tokens"], classes=CLASSES["classes"])
    targets = Targets.parse(slo, 99, ["batch", "chat"])
    run = Bench().measure(plan, load, 30.0, 1000, (99.0,))
    workload = load.workload(30.0, 1000, 16)
    fields = [
        llmsim.Request(at / 1e12, int(prompt), int(answer), slo_class=name)
        for at, prompt, answer, name in zip(
            workload.arrival_ps, workload.input_tokens, workload.output_tokens,
            workload.slo_class or (), strict=True,
        )
    ]  # fmt: skip
    summary = llmsim.run(plan.fields(), fields, seed=1).summary["classes"]
    for key, _ in targets.most_ms:
        name, _, metric = key.partition(".")
        assert run.at(99.0)[key] == pytest.approx(summary[name][f"p99_{metric}_ms"], rel=1e-4)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"slo": "chta=ttft:5"}, 'no request has the slo_class "chta"'),
        (
            {"slo": "a=ttft:5", "classes": "", "input": "fixed:9", "output_tokens": "fixed:9"},
            'slo_class "a"; the load has no classes; `slo_class` of a trace names them',
        ),
        ({"slo": "chat=ttft:5", "classes": ""}, "input"),
        ({"classes": "chat"}, "classes"),
        ({"classes": "chat:1", "rate": None, "dataset": "x.jsonl"}, "beside a dataset"),
    ],
)
def test_classes_that_cannot_be_asked(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        size(MODEL, "H100", **{**ASKED, **CLASSES, **change})


def test_unknown_devices_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="H1000"):
        size(MODEL, "H100,H1000", **ASKED)


def test_a_pruned_plan_would_have_missed() -> None:
    """Every reason but memory is a bound: a run of what it prunes misses the targets."""
    bench = Bench()
    cases = [
        (Load(RATE, 1.0, "fixed:200", "fixed:50"), "tpot:2"),
        (Load(RATE, 1.0, "fixed:30000", "fixed:5"), "ttft:200"),
        (Load(RATE, 500.0, "fixed:2000", "fixed:5"), "ttft:3000"),
    ]
    plan = Plan(MODEL, "H100", (Pool(Shape(1), 1),))
    reasons = set()
    for load, slo in cases:
        targets = Targets.parse(slo, 99)
        reason = pruned_reason(plan, load, targets, 400, bench.options)
        assert reason.name in REASONS and reason.sentence and reason.excess > 1
        reasons.add(reason.name)
        found = bench.measure(plan, load, load.level, 400, (99.0,))
        assert misses(found, targets)
        easy = Targets.parse("ttft:1e6,tpot:1e6", 99)
        low = replace(load, level=0.1)
        assert not pruned_reason(plan, low, easy, 400, bench.options).name
    assert len(reasons) == 3


def test_capacity_is_between_a_level_that_meets_and_one_that_misses() -> None:
    bench, targets = Bench(), Targets.parse("ttft:300,tpot:15", 99)
    load = Load(RATE, 1.0, "fixed:500", "fixed:50")
    plan = Plan(MODEL, "H100", (Pool(Shape(1), 1),))
    found = capacity(bench, plan, load, targets, 3.0)
    assert found.at is not None and found.beyond is not None
    assert not misses(found.at, targets) and misses(found.beyond, targets)
    assert 1 < found.beyond.level / found.at.level <= 1.021
    assert capacity(bench, plan, load, targets, 3.0, ceiling=2.0).beyond is None


PD = Plan(
    "Qwen/Qwen3-30B-A3B",
    "H100",
    (Pool(Shape(4), 1, "prefill"), Pool(Shape(8, ep=8, dp=4), 2, "decode")),
    (("max_num_seqs", 64),),
)


def test_an_emitted_cluster_file_has_a_host_memory_and_runs_as_planned(tmp_path: Path) -> None:
    plan = Plan("Qwen/Qwen3-8B", "H100", (Pool(Shape(1), 2),))
    emit(plan, tmp_path)
    load, options = "synthetic:n=20,rate=20,input=200,output=20,seed=1", {"cost_source": "roofline"}
    written = tmp_path / "cluster.json"
    planned = llmsim.run(plan.fields(), load, **options)
    assert llmsim.run(written, load, **options).requests.equals(planned.requests)
    tiers = llmsim.run(written, load, **options, prefix_storage="CPU", enable_prefix_caching=True)
    assert tiers.summary["completed"] == 20


def test_emitted_files_start_as_many_devices_as_planned(tmp_path: Path) -> None:
    files = {path.name: path.read_text() for path in emit(PD, tmp_path)}
    servers = [line for line in files["vllm.sh"].splitlines() if "vllm serve" in line]
    assert len(servers) == 3 and all("NixlConnector" in line for line in servers)
    gpus = [line.partition("CUDA_VISIBLE_DEVICES=")[2].split()[0] for line in servers]
    assert [len(one.split(",")) for one in gpus] == [4, 8, 8]
    assert "--data-parallel-size 4 --enable-expert-parallel --max-num-seqs 64" in servers[1]
    assert files["sglang.sh"].count("--disaggregation-mode decode") == 2
    assert files["sglang.sh"].count("--host 0.0.0.0") == 3
    services = yaml.safe_load(files["compose.yaml"])["services"].values()
    devices = [
        one["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for one in services
    ]
    assert sum(map(len, devices)) == PD.devices == 20
    graph = yaml.safe_load(files["dynamo.yaml"])["spec"]["services"]
    workers = [one for one in graph.values() if one["componentType"] == "worker"]
    assert sum(one["replicas"] * int(one["resources"]["limits"]["gpu"]) for one in workers) == 20
    values = yaml.safe_load(files["llm-d-values.yaml"])
    assert values["decode"]["parallelism"] == {"tensor": 2, "data": 4}
    sets = list(yaml.safe_load_all(files["lws.yaml"]))
    assert [one["spec"]["replicas"] for one in sets] == [1, 2]


def test_emitted_servers_shake_hands_at_addresses_of_their_own(tmp_path: Path) -> None:
    """vLLM's NIXL takes a port for each data-parallel rank, of a host that others can name."""
    files = {path.name: path.read_text() for path in emit(PD, tmp_path)}
    places = re.findall(
        r"VLLM_NIXL_SIDE_CHANNEL_HOST=(\w+) VLLM_NIXL_SIDE_CHANNEL_PORT=(\d+)", files["vllm.sh"]
    )
    ports = [int(port) for _, port in places]
    assert ports == [5600, 5601, 5605], "one rank of prefill, then decodes of four ranks each"
    services = yaml.safe_load(files["compose.yaml"])["services"].values()
    told = [
        (f"VLLM_NIXL_SIDE_CHANNEL_HOST={host}", f"VLLM_NIXL_SIDE_CHANNEL_PORT={port}")
        for host, port in places
    ]
    assert [tuple(one["environment"][-2:]) for one in services] == told
    assert files["lws.yaml"].count("status.podIP") == 2
    assert files["llm-d-values.yaml"].count("status.podIP") == 2


def test_a_page_is_whole_and_needs_no_network(answer: Answer) -> None:
    page = html(answer)
    assert "http" not in page and "<script" not in page
    assert text(answer).splitlines()[0].replace("<", "&lt;") in page
    assert "<table>" in page
    start = page.find("<svg")
    if start >= 0:
        assert "polyline" in page[start:]


def test_times_that_nobody_measured_are_said_where_others_are_measured() -> None:
    """Nobody has measured MI300X, which holds the model alone; H100 does not."""
    asked: dict[str, Any] = {"rate": 1, "slo": "ttft:1000,tpot:80", "architecture": "colocated"}
    found = size("meta-llama/Llama-3.1-70B", ["MI300X", "H100"], **asked)
    best, other = found.best, found.better_known
    assert best is not None and best.plan.device == "MI300X"
    assert other is not None and other.plan.device == "H100"
    shown, page, fields = text(found), html(found), found.as_json()
    assert "\n  Times: 100% analytic\n" in shown and "<td>100% analytic</td>" in page
    assert fields["best"]["cost_sources"]["by_provenance"]["analytic"] == 1.0
    assert fields["note"] in shown and fields["note"] in page
    assert fields["note"].startswith("the times of MI300X are 100% analytic; ")
    assert " H100 as " in fields["note"] and "(meets the targets with +" in fields["note"]
    measured = size("meta-llama/Llama-3.1-70B", "H100", **asked)
    assert measured.note is None and measured.as_json()["note"] is None
    assert measured.best is not None and measured.best.sources is not None
    assert measured.best.sources.known > 0.5 and "measured or interpolated" in text(measured)
    alone = size("meta-llama/Llama-3.1-70B", "MI300X", **asked)
    assert alone.note is None and "Times: 100% analytic" in text(alone)


def test_a_device_is_found_whose_instances_need_each_other() -> None:
    """One instance alone takes a twentieth of its share of four, as nearly all of the target goes
    into computing long prompts: beside a faster device such a layout looked twenty times too dear.
    """
    asked: dict[str, Any] = {"rate": 3.0, "slo": "ttft:1500,tpot:35", "input": "lognormal:3000"}
    both = size("Qwen/Qwen3-32B", "A100,H20", **asked, architecture="colocated")
    alone = size("Qwen/Qwen3-32B", "H20", **asked, architecture="colocated")
    assert both.best is not None and alone.best is not None
    assert both.best.plan == alone.best.plan


@pytest.mark.parametrize("spare", [1.005, 1.2])
def test_several_instances_that_just_meet_the_targets_are_found(spare: float) -> None:
    """One instance alone takes a twentieth of the load within targets that two just meet."""
    model = "meta-llama/Llama-3.1-8B"
    load = Load(RATE, 0.4, "lognormal:600", "lognormal:100", seed=9)
    plan = Plan(model, "A100", (Pool(Shape(2), 2),), devices_per_node=2)
    easy = Targets.parse("ttft:10000,tpot:10000", 99)
    run, _, _ = able(Bench(), plan, load, easy, fewest=FEWEST_VERIFIED)
    assert run is not None
    targets = {name: spare * value for name, value in run.at(99).items() if name != "e2el"}
    asked: dict[str, Any] = {"input": load.input, "output_tokens": load.output, "seed": 9}
    asked |= {"devices_per_node": 2, "max_devices": 8, "architecture": "colocated"}
    found = size(model, "A100", rate=0.4, slo=targets, **asked)
    assert found.best is not None and found.best.plan.devices <= plan.devices


def test_estimates_have_the_requests_that_decide() -> None:
    """The longest of the first 400 prompts miss a target that those of all 1,000 meet."""
    lengths = "input=lognormal:3000,output=fixed:20,seed=6"
    load = f"synthetic:n=1000,rate=0.02,{lengths}"
    tokens = load_dataset(load, known_models=(), granularity=16).input_tokens
    assert np.percentile(tokens[:400], 99) > 1.1 * np.percentile(tokens, 99)
    model = "meta-llama/Llama-3.1-8B"
    run = llmsim.run(llmsim.Cluster.build(model, "H100"), load)
    targets = f"ttft:{1.03 * run.summary['p99_ttft_ms']:.1f}"
    asked: dict[str, Any] = {"input": "lognormal:3000", "output_tokens": "fixed:20", "seed": 6}
    asked |= {"architecture": "colocated", "devices_per_node": 1}
    found = size(model, "H100", rate=0.02, slo=targets, **asked)
    assert found.best is not None and found.best.plan.devices == 1


def test_prompts_that_no_deployment_serves_are_counted_apart() -> None:
    """One of 1,000 lognormal prompts is beyond the model's context; the others are served."""
    asked: dict[str, Any] = {"input": "lognormal:3000", "architecture": "colocated", "seed": 7}
    found = size("Qwen/Qwen3-30B-A3B", "H20", concurrency=2, slo="ttft:1200", **asked)
    assert found.best is not None and found.best.run is not None
    load = f"synthetic:n=1000,rate=1,input=lognormal:3000,output=fixed:200,seed={asked['seed']}"
    lengths = load_dataset(load, known_models=(), granularity=16).input_tokens
    beyond = int((lengths >= 40960).sum())
    assert beyond and found.best.run.too_long == beyond
    assert found.best.run.completed == 1000 - beyond
    assert found.as_json()["too_long_requests"] == beyond
    assert f"{beyond} of 1,000 prompts {plural(beyond, 'is', 'are')} too long" in text(found)


def test_a_load_that_the_model_cannot_serve_is_refused() -> None:
    with pytest.raises(InputError, match=r"all prompts have 50,000 tokens .* serves 40,960"):
        size(MODEL, "H100", rate=1, slo="ttft:500", input="fixed:50000")


def test_the_nearest_deployment_is_named_where_nothing_takes_any_load() -> None:
    """The weights of an eighth can be read in time, but a step takes longer than that."""
    found = size(MODEL, "L40S", rate=1, slo="tpot:3", architecture="colocated")
    assert found.best is None
    shown = text(found)
    with pytest.raises(InputError, match="nothing meets the targets"):
        found.emit("files")
    nearest, missed = found.next[0]
    assert nearest.run is not None and nearest.run.level < 1 and not math.isinf(nearest.run.level)
    assert missed.startswith("even at ") and "over 3 ms" in missed and missed in shown
    assert nearest.sources is not None
    assert f"{missed}; times {nearest.sources.words}\n" in shown
    assert "at least" not in shown, "a layout that was not run is no nearest one"


def test_a_reason_names_the_layout_that_comes_nearest() -> None:
    found = size(MODEL, "H100", rate=1, slo="tpot:0.1", architecture="colocated")
    assert "(H100 1 x TP32 on 4 nodes: " in text(found)


@pytest.mark.parametrize(
    ("found_ms", "most_ms", "shown"),
    [(6.61, 6.5, "6.6"), (803.2, 800.0, "803"), (30.04, 30.0, "30.04"), (1500.3, 1500, "1,500.3")],
)
def test_a_figure_that_misses_a_target_is_shown_beyond_it(
    found_ms: float, most_ms: float, shown: str
) -> None:
    assert beyond_target(found_ms, most_ms) == shown


def test_a_server_starts_whose_cache_is_below_the_models_context(tmp_path: Path) -> None:
    """vLLM wants one request of max_model_len to fit: 2,150 blocks hold 34,400 of 40,960 tokens."""
    plan = Plan("Qwen/Qwen3-32B", "H100", (Pool(Shape(1), 1),))
    emit(plan, tmp_path)
    [line] = [one for one in (tmp_path / "vllm.sh").read_text().splitlines() if " serve " in one]
    longest = int(line.partition("--max-model-len ")[2].split()[0])
    load = "synthetic:n=2,rate=1,input=100,output=5,seed=1"
    run = llmsim.run(plan.fields(), load)
    assert longest == run.summary["kv_cache"][0]["num_blocks"] * 16 < 40960
    assert any("would not start" in note for note in run.summary["notes"])
    shorter = llmsim.run(plan.fields(), load, max_model_len=longest)
    assert not any("would not start" in note for note in shorter.summary["notes"])
    emit(replace(plan, pools=(Pool(Shape(2), 1),)), tmp_path)
    assert "--max-model-len" not in (tmp_path / "vllm.sh").read_text()


@pytest.mark.parametrize(
    ("device", "variable", "files"),
    [
        ("MI300X", "HIP_VISIBLE_DEVICES=0,1", {"sglang.sh", "compose.yaml", "lws.yaml"}),
        ("TPU-v6e", "TPU_VISIBLE_CHIPS=0,1", set()),
        ("Xeon-8592+", "\nvllm serve", set()),
    ],
)
def test_files_for_devices_of_other_vendors(
    device: str, variable: str, files: set[str], tmp_path: Path
) -> None:
    plan = Plan(MODEL, device, (Pool(Shape(2), 1),))
    written = {path.name for path in emit(plan, tmp_path)}
    assert files | {"vllm.sh", "cluster.json"} <= written and "dynamo.yaml" not in written
    assert variable in (tmp_path / "vllm.sh").read_text()
    assert "dynamo.yaml" in not_written(plan) and not_written(plan).endswith(f"vLLM on {device}")
    texts = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "nvidia" not in texts.lower().replace("nvidia.com/v1alpha1", "")
    if files:
        assert "amd.com/gpu: '2'" in (tmp_path / "lws.yaml").read_text()
        assert variable in (tmp_path / "compose.yaml").read_text()


def test_targets_that_a_request_alone_misses_take_few_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The nearest ones are those of bisection, which takes many times as many runs."""
    runs: list[int] = []
    measure = Bench.measure

    def counted(self: Bench, *given: Any, **more: Any) -> Measured:
        runs.append(given[3])
        return measure(self, *given, **more)

    monkeypatch.setattr(Bench, "measure", counted)
    asked: dict[str, Any] = {"rate": 60.0, "architecture": "afd", "devices_per_node": 2}
    asked |= {"slo": "ttft:10,tpot:50", "input": "fixed:600", "output_tokens": "fixed:30"}
    quick = size("Qwen/Qwen3-30B-A3B", "H100", **asked)
    with_a_load = sum(requests > 1 for requests in runs)
    assert quick.found.pruned.counts[PARTNER], "no prefill instance meets TTFT"
    runs.clear()
    monkeypatch.setattr(instances, "missed_alone", lambda *_: None)
    slow = size("Qwen/Qwen3-30B-A3B", "H100", **asked)
    assert with_a_load <= len(runs) / 4
    assert quick.best is slow.best is None
    shown = [[(one.plan.label, missed) for one, missed in answer.next] for answer in (quick, slow)]
    assert shown[0] == shown[1]


@pytest.mark.parametrize(
    ("model", "shape", "input", "output"),
    [
        ("meta-llama/Llama-3.1-8B", Shape(1), "lognormal:1500", "lognormal:200"),
        ("meta-llama/Llama-3.1-8B", Shape(2), "uniform:1-8000", "uniform:1-500"),
        ("Qwen/Qwen3-30B-A3B", Shape(2, ep=2), "lognormal:300", "lognormal:300"),
        ("Qwen/Qwen3-30B-A3B", Shape(1, ffn=2, ep=2), "fixed:700", "fixed:90"),
    ],
)
@pytest.mark.parametrize("rate", [0.05, 2.0, 8.0])
def test_a_request_alone_is_not_slower_than_under_a_load(
    model: str, shape: Shape, input: str, output: str, rate: float
) -> None:
    """Targets of what a run just reaches are not ruled out by the request that stands for it."""
    plan, bench = Plan(model, "H100", (Pool(shape, 1),)), Bench()
    load = Load(RATE, rate, input, output)
    run, _, _ = able(bench, plan, load, Targets.parse("ttft:1e6,tpot:1e6", 99), fewest=400)
    assert run is not None
    for metric in ("ttft", "tpot"):
        found = run.at(99)[metric]
        assert not ruled_out(bench, plan, load, f"{metric}:{found:.6f}")
        assert ruled_out(bench, plan, load, f"{metric}:{found / 1000:.6f}")


def ruled_out(bench: Bench, plan: Plan, load: Load, slo: str) -> bool:
    return missed_alone(bench, plan, load, Targets.parse(slo, 99), 400) is not None


def test_a_request_alone_says_nothing_of_classes_and_of_traces() -> None:
    plan = Plan(MODEL, "H100", (Pool(Shape(1), 1),))
    targets = Targets.parse("tpot:0.001", 99)
    trace = Load("trace", 1.0, dataset=TRACE)
    assert missed_alone(Bench(), plan, trace, targets, 400) is None
    classes = Load(RATE, 1.0, classes="a:1")
    assert missed_alone(Bench(), plan, classes, targets, 400) is None


def test_a_target_that_no_load_meets_takes_few_runs() -> None:
    """Half the load misses TPOT by as much: the lowest level tells the same as eight halves."""
    bench, targets = Bench(), Targets.parse("tpot:1", 99)
    load = Load(RATE, 1.0, "fixed:200", "fixed:20")
    plan = Plan(MODEL, "H100", (Pool(Shape(1), 1),))
    found = capacity(bench, plan, load, targets, 1.0)
    assert found.level == 0 and found.beyond is not None and found.beyond.level == 1e-3
    assert bench.runs <= 4
