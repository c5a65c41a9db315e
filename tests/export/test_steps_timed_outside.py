"""`--network-backend strict` and `external:PATH`: each distinct step is timed once, elsewhere."""

import json
import stat
from pathlib import Path

import pytest

import llmsim
from llmsim.api.result import Result
from llmsim.cli import main
from llmsim.rounds import outside
from tests.engine.command import build_command

ROOT = Path(__file__).resolve().parents[2]
TRACE = "synthetic:n=6,rate=40,input=lognormal:200,output=fixed:6,seed=4"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLMSIM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Qwen2.5-0.5B on two ranks, whose collectives the links price."""
    document = json.loads((ROOT / "cluster_config" / "h100_llama31_8b.json").read_text())
    document["nodes"][0]["instances"][0].update(
        model_name="Qwen/Qwen2.5-0.5B-Instruct", num_npus=2, tp_size=2
    )
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(document))
    return path


def stand_in(folder: Path, last: str) -> Path:
    """A program that notes each of its runs."""
    path = folder / "stand_in"
    path.write_text(f'#!/bin/sh\necho run >> "{folder}/runs"\n{last}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def run(cluster: Path, backend: str) -> Result:
    return llmsim.run(
        cluster,
        TRACE,
        network_backend=backend,
        cost_source="roofline",
        collective_costs="links",
    )


def note_of(result: Result) -> str:
    (note,) = (note for note in result.notes if note.startswith("network backend"))
    return note


def test_each_distinct_step_once_with_the_same_schedule(cluster: Path, tmp_path: Path) -> None:
    """A program that takes the run's own time for each step, but for whole nanoseconds."""
    program = stand_in(tmp_path, f'exec "{build_command()}" "$@"')
    own, there = run(cluster, "analytical"), run(cluster, f"external:{program}")
    for column in ("tokens", "sequences", "group"):
        assert list(own.steps[column]) == list(there.steps[column])
    later_ps = there.steps["end_ps"] - own.steps["end_ps"]
    assert later_ps.abs().max() <= 1000 * len(own.steps)
    runs = len((tmp_path / "runs").read_text().split())
    assert 0 < runs <= len(own.steps)
    assert f" timed {runs} of {len(own.steps)} steps " in note_of(there)
    again = run(cluster, f"external:{program}")
    assert again.requests.equals(there.requests)
    assert len((tmp_path / "runs").read_text().split()) == runs
    assert " timed 0 of " in note_of(again)


def test_a_switch_of_a_topology_is_one_for_the_program(cluster: Path, tmp_path: Path) -> None:
    """Its ports as the topology has them: the run's own times, but for whole nanoseconds."""
    document = json.loads(cluster.read_text()) | {"topology": "dgx_h100"}
    cluster.write_text(json.dumps(document))
    program = stand_in(tmp_path, f'cp "$PWD/network.yml" {tmp_path}; exec "{build_command()}" "$@"')
    own, there = run(cluster, "analytical"), run(cluster, f"external:{program}")
    later_ps = there.steps["end_ps"] - own.steps["end_ps"]
    assert later_ps.abs().max() <= 1000 * len(own.steps)
    assert (tmp_path / "network.yml").read_text().splitlines() == [
        'topology: ["Switch"]',
        "npus_count: [2]",
        "bandwidth: [450.0]",
        "latency: [500.0]",
    ]


def test_strict_rules(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(outside, "astra_sim_command", build_command)
    own, strict = run(cluster, "analytical"), run(cluster, "strict")
    assert set(strict.summary["invariants"].values()) == {"ok"}
    ratio = strict.summary["mean_tpot_ms"] / own.summary["mean_tpot_ms"]
    assert ratio != 1 and 0.5 < ratio < 2  # other units and roundings, the same work
    monkeypatch.setattr(outside, "astra_sim_command", lambda: None)
    given = ["--cluster-config", str(cluster), "--dataset", TRACE, "--network-backend", "strict"]
    assert main(["run", *given]) == 2
    assert "the command astra-sim is not installed beside llmsim" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ("echo no memory >&2; exit 9", 'exit code 9 at step 1; its last words: "no memory"'),
        ("echo hello", 'has no line of the end of NPU 0 at step 1; its last words: "hello"'),
        ("echo 'sys[0] finished, 5 cycles, 0'", "has no line of the end of NPU 1"),
        ("sleep 30", "took more than 1 s for one step"),
    ],
)
def test_programs_that_fail(
    last: str, words: str, cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if last.startswith("sleep"):
        monkeypatch.setattr(outside, "HANGS_S", 1)
    with pytest.raises(llmsim.InputError) as error:
        run(cluster, f"external:{stand_in(tmp_path, 'exec ' * (last[0] == 's') + last)}")
    assert words in str(error.value) and "\n" not in str(error.value)


def test_what_does_not_exist_or_overlaps_is_refused(
    cluster: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["run", "--cluster-config", str(cluster), "--dataset", TRACE]
    assert main([*given, "--network-backend", f"external:{tmp_path}/none"]) == 2
    assert "is no program that can be run" in capsys.readouterr().err
    program = stand_in(tmp_path, "exit 0")
    assert main([*given, "--network-backend", f"external:{program}", "--exact"]) == 2
    assert "exclude each other" in capsys.readouterr().err
    document = json.loads(cluster.read_text())
    document["nodes"][0]["instances"][0].update(tp_size=1, pp_size=2)
    cluster.write_text(json.dumps(document))
    assert main([*given, "--network-backend", f"external:{program}"]) != 0
    assert "has pipeline stages, whose steps overlap" in capsys.readouterr().err
    document["nodes"][0]["instances"][0].update(tp_size=2, pp_size=1, topology_devices=[0, 4])
    cluster.write_text(json.dumps(document | {"topology": "pcie_gen4_8"}))
    assert main([*given, "--network-backend", f"external:{program}"]) != 0
    assert "is on a topology that is more than one switch" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
