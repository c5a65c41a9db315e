"""`--network-backend strict` and `external:PATH`: each distinct step is timed once, elsewhere."""

import json
import stat
from pathlib import Path

import pytest

import llmsim
from llmsim.api.result import Result
from llmsim.cli import main
from llmsim.rounds import backend as programs
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


def run(cluster: Path, backend: str, trace: str = TRACE) -> Result:
    return llmsim.run(
        cluster,
        trace,
        async_scheduling=False,
        max_num_batched_tokens=256,
        launch_ns=0,
        network_backend=backend,
        cost_source="roofline",
        collective_costs="links",
    )


def stages_of(cluster: Path) -> None:
    """Two pipeline stages instead of two ranks of one."""
    document = json.loads(cluster.read_text())
    document["nodes"][0]["instances"][0].update(tp_size=1, pp_size=2)
    cluster.write_text(json.dumps(document))


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
    assert there.summary["network_backend"] == {
        "name": f"external:{program}",
        "steps": len(own.steps),
        "new_steps": runs,
        "new_share": round(runs / len(own.steps), 6),
        "failure": None,
    }
    assert "network_backend" not in own.summary
    again = run(cluster, f"external:{program}")
    assert again.requests.equals(there.requests)
    assert len((tmp_path / "runs").read_text().split()) == runs
    assert " timed 0 of " in note_of(again)


def test_three_hundred_requests_on_four_ranks(cluster: Path, tmp_path: Path) -> None:
    """Each distinct step is timed once, and the schedule is that of a run that times itself."""
    document = json.loads(cluster.read_text())
    keys = {"model_name": "meta-llama/Llama-3.2-1B", "num_npus": 4, "tp_size": 4}
    document["nodes"][0]["instances"][0].update(keys)
    cluster.write_text(json.dumps(document))
    trace = "synthetic:n=300,rate=3000,input=fixed:64,output=fixed:5,seed=1"
    program = stand_in(tmp_path, f'exec "{build_command()}" "$@"')
    own, there = (run(cluster, one, trace) for one in ("analytical", f"external:{program}"))
    assert there.summary["completed"] == 300
    for column in ("tokens", "sequences"):
        assert list(own.steps[column]) == list(there.steps[column])
    runs = len((tmp_path / "runs").read_text().split())
    assert runs == there.summary["network_backend"]["new_steps"] <= len(own.steps)
    shapes = {tuple(row) for row in own.steps[["tokens", "sequences"]].to_numpy()}
    assert runs >= len(shapes)
    later_ps = there.steps["end_ps"] - own.steps["end_ps"]
    assert later_ps.abs().max() <= 1000 * len(own.steps)


@pytest.mark.parametrize("name", ["stages", "cpu_attention_instance", "single_node_cxl_instance"])
def test_stages_and_memory_beside_the_devices(name: str, cluster: Path, tmp_path: Path) -> None:
    """Batches overlap in stages, and weights are copied ahead, as in a run that times itself."""
    if name == "stages":
        stages_of(cluster)
    else:
        cluster = ROOT / "cluster_config" / f"{name}.json"
    program = stand_in(tmp_path, f'exec "{build_command()}" "$@"')
    trace = TRACE.replace("rate=40", "rate=1000")
    own, there = (run(cluster, one, trace) for one in ("analytical", f"external:{program}"))
    assert set(there.summary["invariants"].values()) == {"ok"}
    assert list(own.steps["tokens"]) == list(there.steps["tokens"])
    later_ps = there.steps["end_ps"] - own.steps["end_ps"]
    assert later_ps.abs().max() <= 1000 * len(own.steps)
    if name == "stages":
        begun, ended = own.steps["start_ps"].to_numpy(), own.steps["end_ps"].to_numpy()
        assert (begun[1:] < ended[:-1]).any()


def test_a_stage_that_is_slower_there(cluster: Path, tmp_path: Path) -> None:
    """Each stage's devices are busy for as much longer as the program says, and batches wait."""
    stages_of(cluster)
    first, second = 40_000, 10_000  # ns later: the first stage, and the second one with it
    later = f"(n == 0 ? {first} : {first + second})"
    longer = (
        f'"{build_command()}" "$@" | awk \'/finished/ {{n = $3; gsub(/[^0-9]/, "", n); '
        f'printf "sys[%d] finished, %.0f cycles\\n", n, $5 + {later}}}\''
    )
    own = run(cluster, "analytical")
    there = run(cluster, f"external:{stand_in(tmp_path, longer)}")
    assert len(own.steps) == len(there.steps)
    lasted_ps = [one.steps["end_ps"] - one.steps["start_ps"] for one in (there, own)]
    more_ns = (lasted_ps[0] - lasted_ps[1]) / 1000
    alone = own.steps["start_ps"].shift(-1, fill_value=10**18) >= own.steps["end_ps"]
    alone &= own.steps["end_ps"].shift(1, fill_value=0) <= own.steps["start_ps"]
    assert alone.any() and (more_ns[alone] - first - second).abs().max() <= 2


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
        f"bandwidth: [{450e9 / 2**30}]",
        "latency: [500.0]",
        "bandwidth_unit: GiB/s  # 450 GB/s of 10^9 bytes",
    ]


def test_servers_and_rails_are_two_dimensions_for_the_program(
    cluster: Path, tmp_path: Path
) -> None:
    """A stage in each of two servers, whose ranks of equal place are on a rail."""
    stages_of(cluster)
    document = json.loads(cluster.read_text()) | {"topology": "h100_rails_32x8"}
    one = document["nodes"][0]["instances"][0]
    one.update(num_npus=4, tp_size=2, topology_devices=[0, 1, 8, 9])
    cluster.write_text(json.dumps(document))
    program = stand_in(tmp_path, f'cp "$PWD/network.yml" {tmp_path}; exec "{build_command()}" "$@"')
    own, there = run(cluster, "analytical"), run(cluster, f"external:{program}")
    later_ps = there.steps["end_ps"] - own.steps["end_ps"]
    assert later_ps.abs().max() <= 1000 * len(own.steps)
    network = (tmp_path / "network.yml").read_text().splitlines()
    assert network[:2] == ['topology: ["Switch", "Switch"]', "npus_count: [2, 2]"]


DRAFTERS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "eagle": ({"method": "eagle"}, {"tp_size": 2}),
    "draft model on each rank": (
        {
            "method": "draft_model",
            "model": "meta-llama/Llama-3.2-1B",
            "draft_tensor_parallel_size": 1,
        },
        {"tp_size": 2},
    ),
    "stages": ({"method": "eagle3"}, {"tp_size": 1, "pp_size": 2}),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_passes_of_a_drafter_are_timed_there(name: str, cluster: Path, tmp_path: Path) -> None:
    section, keys = DRAFTERS[name]
    document = json.loads(cluster.read_text())
    one = document["nodes"][0]["instances"][0]
    one.update(keys, model_name="meta-llama/Llama-3.1-8B", num_npus=2, max_num_seqs=16)
    one["speculative_config"] = {"num_speculative_tokens": 3, "acceptance_rate": 0.7, **section}
    cluster.write_text(json.dumps(document))
    program = stand_in(tmp_path, f'exec "{build_command()}" "$@"')
    own, there = run(cluster, "analytical"), run(cluster, f"external:{program}")
    assert set(there.summary["invariants"].values()) == {"ok"}
    for count in ("drafted_tokens", "accepted_tokens"):
        assert own.summary["speculation"][count] == there.summary["speculation"][count] > 0
    later_ps = there.steps["end_ps"] - own.steps["end_ps"]
    assert later_ps.abs().max() <= 1000 * len(own.steps)
    again = run(cluster, f"external:{program}")
    assert again.requests.equals(there.requests) and " timed 0 of " in note_of(again)


def test_strict_rules(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(programs, "astra_sim_command", build_command)
    own, strict = run(cluster, "analytical"), run(cluster, "strict")
    assert set(strict.summary["invariants"].values()) == {"ok"}
    ratio = strict.summary["mean_tpot_ms"] / own.summary["mean_tpot_ms"]
    assert ratio != 1 and 0.5 < ratio < 2  # other units and roundings, the same work
    monkeypatch.setattr(programs, "astra_sim_command", lambda: None)
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
        ("echo so far; sh -c 'sleep 30'; echo", 'for one step at step 1; its last words: "so far"'),
        (
            "echo 'sys[0] finished, 99999999999999999999 cycles'; echo 'sys[1] finished, 5 cycles'",
            "says that a step takes 99999999999999999999 cycles",
        ),
    ],
)
def test_programs_that_fail(
    last: str, words: str, cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "sleep" in last:
        monkeypatch.setattr(programs, "HANGS_S", 1)
    with pytest.raises(llmsim.InputError) as error:
        run(cluster, f"external:{stand_in(tmp_path, 'exec ' * (last[0] == 's') + last)}")
    assert words in str(error.value) and "\n" not in str(error.value)


def test_what_was_done_is_kept(
    cluster: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program dies at its eighth run; a wrapper's own children end with it."""
    body = f'[ $(wc -l < "{tmp_path}/runs") -ge 8 ] && {{ echo out of luck; exit 7; }}'
    program = stand_in(tmp_path, f'{body}\n"{build_command()}" "$@"')
    given = ["run", "--cluster-config", str(cluster), "--dataset", TRACE, "--cost-source"]
    given += ["roofline", "--collective-costs", "links", "--json", "--run-dir", str(tmp_path / "d")]
    assert main([*given, "--network-backend", f"external:{program}"]) == 2
    out, error = capsys.readouterr()
    summary = json.loads(out)
    assert 0 < summary["completed"] < 6 and set(summary["invariants"].values()) == {"ok"}
    assert "ended with exit code 7 at step" in error and '"out of luck"' in error
    assert summary["completed"] == 1
    assert "the 1 request that had finished was written" in error
    assert summary["network_backend"]["failure"] and (tmp_path / "d" / "summary.json").exists()
    kept = summary["network_backend"]["new_steps"]
    assert f"the {kept} steps that it has timed are kept" in error and kept == 7


def test_what_does_not_exist_or_is_not_in_the_traces_is_refused(
    cluster: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["run", "--cluster-config", str(cluster), "--dataset", TRACE]
    assert main([*given, "--network-backend", f"external:{tmp_path}/none"]) == 2
    assert "is no program that can be run" in capsys.readouterr().err
    program = stand_in(tmp_path, "exit 0")
    assert main([*given, "--network-backend", f"external:{program}", "--exact"]) == 2
    assert "exclude each other" in capsys.readouterr().err
    assert (
        main(
            [
                *given[:1],
                "--cluster-config",
                str(ROOT / "cluster_config/cxl_two_groups.json"),
                *given[3:],
                "--network-backend",
                f"external:{program}",
            ]
        )
        != 0
    )
    assert "copies over links that other transfers use, too" in capsys.readouterr().err
    document = json.loads(cluster.read_text())
    document["nodes"][0]["instances"][0].update(topology_devices=[0, 4])
    burst = {"buffer_bytes": 10**6, "burst_bytes": 64000, "efficiency_percent": 20}
    cluster.write_text(json.dumps(document | {"topology": "pcie_gen4_8", "incast": burst}))
    assert main([*given, "--network-backend", f"external:{program}"]) != 0
    assert "has a network with incast" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


ROUTES: dict[str, tuple[str, list[int], dict[str, object], list[tuple[int, float, float]]]] = {
    "sockets": ("pcie_gen4_8", [0, 4], {"tp_size": 2}, [(2, 31.5, 1400)]),
    "out of order": ("pcie_gen4_8", [0, 5, 2, 7], {"tp_size": 4}, [(4, 31.2, 1400)]),
    "islands": ("mixed_h100_a100", [0, 9], {"tp_size": 2}, [(2, 25, 3000)]),
    "fat tree": ("fat_tree_k8", [0, 4], {"tp_size": 2}, [(2, 50, 2000)]),
    "a stage on each socket": (
        "pcie_gen4_8",
        [0, 1, 4, 5],
        {"tp_size": 2, "pp_size": 2},
        [(2, 31.5, 600), (2, 15.75, 1400)],
    ),
}
"""Topology, devices, layout, and the mesh that a program gets: ranks, GB/s and ns by dimension.

Out of order, two messages of a ring cross the sockets' link of 62.4 GB/s at once; when both ranks
of a stage hand over, they share the uplink of a switch, of 31.5 GB/s.
"""


@pytest.mark.parametrize("name", ROUTES)
def test_routes_are_a_mesh_for_the_program(name: str, cluster: Path, tmp_path: Path) -> None:
    """Of the rates that messages have on the routes: the run's own times, to a thousandth."""
    topology, devices, keys, expected = ROUTES[name]
    document = json.loads(cluster.read_text()) | {"topology": topology}
    one = document["nodes"][0]["instances"][0]
    one.update(keys, model_name="meta-llama/Llama-3.2-1B", topology_devices=devices)
    one["num_npus"] = len(devices)
    cluster.write_text(json.dumps(document))
    program = stand_in(tmp_path, f'cp "$PWD/network.yml" {tmp_path}; exec "{build_command()}" "$@"')
    own, there = run(cluster, "analytical"), run(cluster, f"external:{program}")
    communication_s = own.summary["communication"]["time_s"]
    later_ps = there.steps["end_ps"] - own.steps["end_ps"]
    assert later_ps.abs().max() <= 1000 * len(own.steps) + communication_s * 1e9
    lines = (tmp_path / "network.yml").read_text().splitlines()
    found = {key: json.loads(value) for key, value in (line.split(": ") for line in lines[:4])}
    found["bandwidth"] = [rate * 2**30 / 1e9 for rate in found["bandwidth"]]
    assert set(found["topology"]) == {"FullyConnected"}
    ports = zip(found["npus_count"], found["bandwidth"], found["latency"], strict=True)
    assert [(size, round(rate, 4), round(ns)) for size, rate, ns in ports] == expected
    assert "its network files do not say topology" in note_of(there)


def test_what_a_mesh_does_not_give_keeps_its_time(cluster: Path, tmp_path: Path) -> None:
    """Stages on links of two speeds: one rate for both, which the faster stage does not have."""
    document = json.loads(cluster.read_text()) | {"topology": "mixed_h100_a100"}
    one = document["nodes"][0]["instances"][0]
    one.update(num_npus=4, tp_size=2, pp_size=2, topology_devices=[0, 1, 8, 9])
    cluster.write_text(json.dumps(document))
    program = stand_in(tmp_path, f'exec "{build_command()}" "$@"')
    own, there = run(cluster, "analytical"), run(cluster, f"external:{program}")
    later_ps = there.steps["end_ps"] - own.steps["end_ps"]
    assert later_ps.abs().max() <= own.summary["communication"]["time_s"] * 1e9
    assert "the run's own times stand for all_reduce" in note_of(there)
