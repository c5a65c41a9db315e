"""Standard output and `log.log` of strict rules are ASTRA-sim's, line for line but for the time."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import HANGS_S
from shared_data import shared

from engine import chakra_file as ck
from engine.command import case_options
from engine.strict.test_conformance import BACKENDS, CORPUS, Case, cases

STAMP = re.compile(r"^\[(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}|timestamp)\] ")
RING = "[system::topology::RingTopology] [info] "


def lines(text: str) -> list[str]:
    """Without their time stamps, which each has to have."""
    found = text.splitlines()
    assert all(STAMP.match(line) for line in found)
    return [STAMP.sub("", line) for line in found]


def run(
    command: Path,
    case: Path,
    scratch: Path,
    backend: str = "unaware",
    flags: tuple[str, ...] = (),
    in_case: bool = False,
) -> "subprocess.CompletedProcess[str]":
    """What upstream would print goes to stdout, its log to `scratch`/log/log.log."""
    options = [*case_options(case, backend), f"--logging-folder={scratch}/log", *flags]
    return subprocess.run(
        [str(command), *options],
        cwd=case if in_case else scratch,
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )


def run_recorded(command: Path, case: Case, scratch: Path, backend: str) -> str:
    flags = tuple(case.expected["extra_flags"])
    in_case = case.expected["cwd_is_case_dir"]
    done = run(command, CORPUS / case.name, scratch, backend, flags, in_case)
    assert done.returncode == 0, (case.name, done.stderr)
    return done.stdout


def named(name: str) -> Case:
    return next(case for edge in (False, True) for case in cases(edge) if case.name == name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_recorded_output(command: Path, tmp_path: Path, backend: str) -> None:
    """The whole of both, of every case of which they were kept."""
    shared("astra_conformance")
    samples = sorted(shared("astra_output_samples").iterdir())
    assert len(samples) >= 5
    for sample in samples:
        told = run_recorded(command, named(sample.name), tmp_path, backend)
        assert lines(told) == lines((sample / f"stdout_{backend}.txt").read_text()), sample.name
        log = (tmp_path / "log" / "log.log").read_text()
        assert lines(log) == lines((sample / f"log_{backend}.log").read_text()), sample.name


def told_figures(text: str) -> Iterator[tuple[str, str]]:
    """(NPU, name of the figure)."""
    yield from re.findall(r"\[statistics\] \[info\] sys\[(\d+)\], ([^:]+):", text)


@pytest.mark.parametrize("backend", BACKENDS)
def test_recorded_order_of_npus(command: Path, tmp_path: Path, backend: str) -> None:
    """They are told as they finish, also those that finish in one nanosecond."""
    folders = sorted(path.parent for path in shared("astra_custom").glob("*/expected.json"))
    assert folders
    for folder in folders:
        expected = json.loads((folder / "expected.json").read_text())
        done = run(command, folder, tmp_path, backend, tuple(expected["extra_flags"]), True)
        finished = re.findall(r"sys\[(\d+)\] finished", done.stdout)
        assert finished == list(expected[f"congestion_{backend}"]["finish_cycles"]), folder.name


@pytest.mark.parametrize("backend", BACKENDS)
def test_recorded_order_of_figures(command: Path, tmp_path: Path, backend: str) -> None:
    """Of every NPU: it depends on the numbers of its nodes."""
    shared("astra_conformance")
    ran = 0
    for case in cases(edge=False):
        recorded = case.recorded(backend)
        if recorded is None or recorded["exit"] != 0 or not recorded.get("statistics"):
            continue
        text = run_recorded(command, case, tmp_path, backend)
        for npu, figures in recorded["statistics"].items():
            told = [name for at, name in told_figures(text) if at == npu]
            assert told == list(figures), (case.name, npu)
        ran += 1
    assert ran >= 80


def test_every_kind_of_line(command: Path, tmp_path: Path) -> None:
    """Two dimensions, a group, the log of nodes, and a collective that NPU 3 never joins."""
    nodes = [
        ck.node(1, ck.COMP, micros=2),
        ck.node(2, ck.COLL, [1], comm_type=ck.ALL_GATHER, comm_size=1000, pg_name="7"),
        ck.node(3, ck.INVALID, [1]),
    ]
    left_out = [ck.node(5, ck.COLL, comm_type=ck.ALL_TO_ALL, comm_size=1000)]
    network = {
        "topology": ["FullyConnected", "Ring"],
        "npus_count": [2, 2],
        "bandwidth": [50, 50],
        "latency": [500, 500],
    }
    system = {
        "trace-enabled": 1,
        "all-reduce-implementation": ["ring", "doubleBinaryTree"],
        "all-to-all-implementation": ["oneDirect"],
    }
    groups = {"7": [2, 0]}
    idle = [ck.node(4, ck.COMP)]
    case = ck.write_case(
        tmp_path / "case", [nodes, idle, nodes, left_out], network, system, groups=groups
    )
    done = run(command, case, tmp_path)
    assert done.returncode == 3
    ring = RING + "ring of node 0, id: 0 dimension: local total nodes in ring: "
    rings = [
        ring + "2 index in ring: 0 offset: 1 total nodes in ring: 2",  # all-reduce; then a tree
        ring + "2 index in ring: 0 offset: 1 total nodes in ring: 2",  # reduce-scatter
        ring + "2 index in ring: 0 offset: 1 total nodes in ring: 2",  # all-gather
        ring + "4 index in ring: 0 offset: 1 total nodes in ring: 4",  # all-to-all, over all
    ]
    said = lines(done.stdout)
    assert said[:4] == rings
    wire = int(500 + 1000 / (50 * 2**30 / 1e9))
    end = 2000 + 2 * 10 + wire
    custom = "custom ring, id: {}, dimension: local total nodes in ring: 2 index in ring: {}"
    assert said[4:] == [
        "[workload] [info] sys[1] finished, 1 cycles, exposed communication 0 cycles.",
        "[statistics] [info] sys[1]. Post statistics processing start.",
        "[statistics] [info] sys[1]. Post statistics processing end.",
        "[statistics] [info] sys[1], Wall time: 1",
        "[statistics] [info] sys[1], GPU time: 1",
        RING + custom.format(0, 1) + " total nodes in ring 2",
        RING + custom.format(2, 0) + " total nodes in ring 2",
        *(
            line.format(npu)
            for npu in (2, 0)
            for line in (
                f"[workload] [info] sys[{{}}] finished, {end} cycles, "
                f"exposed communication {end - 2000} cycles.",
                "[statistics] [info] sys[{}]. Post statistics processing start.",
                "[statistics] [info] sys[{}]. Post statistics processing end.",
                f"[statistics] [info] sys[{{}}], Wall time: {end}",
                f"[statistics] [info] sys[{{}}], Comm time: {end - 2000}",
                "[statistics] [info] sys[{}], GPU time: 2000",
            )
        ),
        "[HardwareResource] [critical] !!!Hardware Resource sys.id=3 has unreleased nodes!!!",
        "[HardwareResource] [critical] GPU comm node id: 5",
        "[system] [warning] Exiting",
    ]
    log = lines((tmp_path / "log" / "log.log").read_text())
    assert [line for line in log if "[debug]" not in line] == said
    of_first = [line for line in log if "[debug]" in line and "sys->id=0," in line]
    node = "sys->id=0, tick={}, node->id={}, node->name=n{}, node->type={}"
    assert of_first == [
        "[workload] [debug] " + what + node.format(tick, number, number, kind)
        for what, tick, number, kind in (
            ("issue,", 0, 1, ck.COMP),
            ("callback,", 2000, 1, ck.COMP),
            ("issue,", 2000, 2, ck.COLL),
            ("callback,", end, 2, ck.COLL),
            ("issue,", end, 3, ck.INVALID),
            ("callback,", end, 3, ck.INVALID),
        )
    ]


def plain(tmp_path: Path, **system: object) -> Path:
    node = ck.node(1, ck.COMP, micros=2, inputs=["a", "2048"], outputs=["b", "512"])
    return ck.write_case(
        tmp_path / "case", [[node]] * 2, ck.network("FullyConnected", 2), dict(system)
    )


def test_a_log_that_cannot_be_written_costs_the_log_only(command: Path, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a file in the place of the folder")
    done = run(command, plain(tmp_path), tmp_path)
    assert done.returncode == 0
    assert "sys[1] finished, 2000 cycles" in done.stdout
    assert f"note: cannot write {tmp_path}/log/log.log: Not a directory" in done.stderr


@pytest.mark.parametrize("rules", ["strict", "default"])
def test_a_missing_folder_of_the_tensors_trace_costs_that_trace_only(
    command: Path, tmp_path: Path, rules: str
) -> None:
    keeps = {"track-local-mem": 1, "local-mem-trace-filename": "nowhere/local_mem"}
    done = run(command, plain(tmp_path, **keeps), tmp_path, flags=(f"--rules={rules}",))
    assert done.returncode == 0
    assert "sys[1] finished, 2000 cycles" in done.stdout
    peak = " peak memory usage: 2.50 KB" if rules == "strict" else ", peak usage: 2560 bytes"
    assert f"sys[1]{peak}" in done.stdout
    assert "note: cannot write nowhere/local_mem.json: No such file or directory" in done.stderr
