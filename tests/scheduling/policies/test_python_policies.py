"""Policies in Python: the documented ones run and equal their native twins, and what is wrong with
one is said.
"""

import json
import re
import sys
from pathlib import Path

import pytest

from llmsim.cli import run_main

ROOT = Path(__file__).resolve().parents[3]
DOC = "".join(
    (ROOT / "docs" / "how-to" / "extending" / f"{page}.md").read_text(encoding="utf-8")
    for page in ("policies", "rankings", "schedulers")
)
EXAMPLES = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", DOC, re.S))
PRESSED = ("--num-gpu-blocks-override", "160", "--max-model-len", "2048")
"""A pool that preempts and evicts."""
SHARED = (
    "synthetic:n=300,rate=40,input=lognormal:150:max=600,output=lognormal:120:max=500,"
    "prefixes=12:tokens=160:share=0.8,seed=4"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory holds the modules; none of them stays imported."""
    for module, text in EXAMPLES.items():
        (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == tmp_path:
            del sys.modules[name]


def run(*more: str, dataset: str = SHARED, output: str = "out.csv") -> int:
    arguments = [
        "--cluster-config",
        str(ROOT / "cluster_config" / "h100_llama31_8b.json"),
        "--dataset",
        dataset,
    ]
    return run_main([*arguments, "--cost-source", "roofline", "--output", output, "--json", *more])


def summary(capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("mine", "native"),
    [
        (("--queue-order", "shortest:Shortest"), ("--scheduling-policy", "sjf")),
        (("--preemption-victim", "youngest:Youngest"), ()),
        (("--cache-eviction", "lru:LeastRecentlyUsed"), ()),
        (("--admission", "limit:Limit:requests=5"), ("--admission", "QUEUE_LIMIT:requests=5")),
    ],
)
def test_the_documented_policies_equal_their_native_twins(
    mine: tuple[str, ...], native: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*PRESSED, *mine, output="a.csv") == 0
    first = summary(capsys)
    assert run(*PRESSED, *native, output="b.csv") == 0
    second = summary(capsys)
    assert (folder / "a.csv").read_bytes() == (folder / "b.csv").read_bytes()
    assert first == second
    assert first["preemptions"] > 0 and first["prefix_cache"]["hit_tokens"] > 0
    assert (first["refused"] > 0) == ("--admission" in mine)


def test_the_documented_expert_router_equals_its_native_twin(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Experts without favourites are RAND's; hot ones make steps longer, and the class is asked
    before the run only.
    """
    cluster = str(ROOT / "cluster_config" / "rtxpro6000_qwen3_30b_a3b_dp2_ep2.json")
    rows = "synthetic:n=12,rate=5,input=fixed:60,output=fixed:12"

    def outputs(policy: str, name: str) -> bytes:
        arguments = (
            "--cluster-config",
            cluster,
            "--dataset",
            rows,
            "--cost-source",
            "roofline",
            "--output",
            name,
        )
        assert run_main([*arguments, "--expert-routing-policy", policy]) == 0
        return (folder / name).read_bytes()

    even = outputs("hot:HotExperts", "a.csv")
    assert even == outputs("RAND", "b.csv")
    assert even != outputs("hot:HotExperts:hot=50,experts=2", "c.csv")
    capsys.readouterr()


@pytest.mark.parametrize("ranking", ["ageing:Ageing:seconds=0.5", "fair:LeastServed"])
def test_the_documented_rankings_run(
    ranking: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command line, and from a cluster file, which may name one only with permission."""
    assert run(*PRESSED, "--scheduling-policy", ranking, output="a.csv") == 0
    first = summary(capsys)
    assert first["completed"] == 300 and set(first["invariants"].values()) == {"ok"}
    assert run(*PRESSED, output="b.csv") == 0
    summary(capsys)
    same = (folder / "a.csv").read_bytes() == (folder / "b.csv").read_bytes()
    assert same == ranking.startswith("ageing")  # equally urgent requests age in order of arrival
    cluster = json.loads((ROOT / "cluster_config" / "h100_llama31_8b.json").read_text())
    cluster["nodes"][0]["instances"][0]["scheduling_policy"] = ranking
    (folder / "cluster.json").write_text(json.dumps(cluster), encoding="utf-8")
    words = ["--cluster-config", "cluster.json", "--dataset", SHARED, "--cost-source", "roofline"]
    words += [*PRESSED, "--json", "--output", "c.csv"]
    assert run_main(words) == 0
    summary(capsys)
    assert (folder / "a.csv").read_bytes() == (folder / "c.csv").read_bytes()
    assert run_main([*words, "--no-allow-plugins"]) == 2
    assert "is a Python plug-in that a file names; give --allow-plugins" in capsys.readouterr().err


def test_the_policies_are_asked_at_all(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    """Their opposites change the schedule: nothing above is equal because nobody was asked."""
    opposite = {
        "--queue-order": EXAMPLES["shortest"].replace(
            "return request.tokens", "return -request.tokens"
        ),
        "--preemption-victim": EXAMPLES["youngest"].replace("len(running) - 1", "0"),
        "--cache-eviction": EXAMPLES["lru"].replace(
            "list(self.order)[:count]", "list(self.order)[::-1][:count]"
        ),
    }
    assert run(*PRESSED, output="own.csv") == 0
    for number, (option, text) in enumerate(opposite.items()):
        (folder / f"opposite{number}.py").write_text(text, encoding="utf-8")
        name = re.search(r"class (\w+)", text)
        assert name is not None
        assert run(*PRESSED, option, f"opposite{number}:{name[1]}", output=f"{number}.csv") == 0
        assert (folder / f"{number}.csv").read_bytes() != (folder / "own.csv").read_bytes(), option
    capsys.readouterr()


def test_a_whole_scheduler_equals_the_native_one_that_does_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Requests far apart: whole prompts, then one token each, as any synchronous
    scheduler has it.
    """
    calm = "synthetic:n=20,rate=0.2,input=fixed:100,output=fixed:30"
    more = ("--no-enable-prefix-caching", "--max-model-len", "4096")
    assert run(*more, "--scheduler", "in_order:InOrder", dataset=calm, output="a.csv") == 0
    assert run(*more, "--no-async-scheduling", dataset=calm, output="b.csv") == 0
    assert (folder / "a.csv").read_bytes() == (folder / "b.csv").read_bytes()
    assert (
        run("--scheduler", "in_order:InOrder", "--request-timeout", "0.5", "--max-concurrency", "8")
        == 0
    )
    capsys.readouterr()


BROKEN = """
class Raises:
    def key(self, request): raise KeyError("colour")
class Half:
    def key(self, request): return 0.5
class Far:
    def choose(self, running, needy): return 99
class Lazy:
    def freed(self, blocks): pass
    def reused(self, blocks): pass
    def evict(self, count): return []
class Perhaps:
    def admit(self, request, group): return "perhaps"
class Greedy:
    def __init__(self, limits): self.rows = []
    def add(self, request, tokens): self.rows.append((request, tokens + 1))
    def build(self, now_ps): return self.rows, []
    def complete(self, received): pass
    def abort(self, request): pass
class Idle(Greedy):
    def build(self, now_ps): return [], []
class Nothing: pass
"""


@pytest.mark.parametrize(
    ("option", "name", "said"),
    [
        ("--queue-order", "broken:Raises", "queue order broken:Raises failed: KeyError: 'colour'"),
        ("--queue-order", "broken:Half", "queue order broken:Half answered 0.5; a whole number"),
        (
            "--preemption-victim",
            "broken:Far",
            "preemption victim broken:Far answered 99; an index from 0 to",
        ),
        ("--cache-eviction", "broken:Lazy", "cache eviction broken:Lazy chose 0 blocks"),
        (
            "--admission",
            "broken:Perhaps",
            "admission broken:Perhaps answered 'perhaps'; True or False",
        ),
        ("--scheduler", "broken:Greedy", "scheduler broken:Greedy: it scheduled"),
        (
            "--scheduler",
            "broken:Idle",
            "scheduler broken:Idle schedules nothing although requests wait",
        ),
        (
            "--queue-order",
            "broken:Nothing",
            "queue order broken:Nothing has no method key(request)",
        ),
        ("--queue-order", "broken:Raise", 'broken has no Raise (did you mean "Raises"'),
        ("--cache-eviction", "nowhere:Class", "there is no module nowhere"),
        ("--queue-order", "shortest", '--queue-order is "shortest"'),
        ("--admission", "QUEUE_LIMIT:request=3", "QUEUE_LIMIT needs requests=N"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    option: str, name: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "broken.py").write_text(BROKEN, encoding="utf-8")
    assert run(*PRESSED, option, name) == 2
    captured = capsys.readouterr()
    assert said in captured.err and len(captured.err.strip().splitlines()) == 1, captured.err


SEEN = """
seen = []
class Seen:
    def admit(self, request, group):
        seen.append((request.row, request.tokens, request.model, request.now_ps))
        return True
"""


def test_admission_sees_the_request_that_it_decides_on(folder: Path) -> None:
    (folder / "noted.py").write_text(SEEN, encoding="utf-8")
    models = ("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-8B")
    rows = [
        {
            "input_toks": 20 + row,
            "output_toks": 3,
            "arrival_time_ns": row * 10**9,
            "model": models[row % 2],
        }
        for row in range(4)
    ]
    trace = folder / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    cluster = str(ROOT / "cluster_config" / "h100_mixed_models.json")
    assert run("--cluster-config", cluster, "--admission", "noted:Seen", dataset=str(trace)) == 0
    seen = sys.modules["noted"].seen
    assert [row[:3] for row in seen] == [(row, 20 + row, models[row % 2]) for row in range(4)]
    assert [round(row[3] / 10**12) for row in seen] == [0, 1, 2, 3]


def test_contradictions_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--queue-order", "shortest:Shortest", "--scheduling-policy", "sjf") == 2
    assert (
        run("--queue-order", "shortest:Shortest", "--scheduler", "mlfq", "--max-model-len", "2048")
        == 2
    )
    assert run("--preemption-victim", "youngest:Youngest", "--scheduler", "sglang") == 2
    assert run("--scheduler", "in_order:InOrder", "--async-scheduling") == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 4
