"""Upstream's configuration files: every spelling that is allowed, notes for what has no effect,
errors with places.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import HANGS_S

from engine import chakra_file as ck
from engine.command import REPOSITORY, case_options, run_case


@pytest.fixture
def case(tmp_path: Path) -> Path:
    nodes = [ck.node(1, ck.COLL, comm_type=ck.ALL_REDUCE, comm_size=4096)]
    return ck.write_case(tmp_path / "case", [nodes] * 8, ck.network("Ring", 8))


NETWORKS = {
    "flow": (
        "topology: [Ring, Switch]\nnpus_count: [4, 2]\nbandwidth: [50.0, 25]\nlatency: [500, 1e3]\n"
    ),
    "block": (
        "topology:\n  - Ring\n  - Switch\nnpus_count:\n- 4\n- 2\nbandwidth:\n - 50\n - "
        "25\nlatency: [500, 1000]\n"
    ),
    "quotes": "---\ntopology: ['Ring', \"Switch\"] # shapes\n\nnpus_count : [ 4,2 ]\nbandwidth: "
    "[50.,25.]\n"
    "latency: [500,1000]",
    "byte order": (
        "\ufefftopology: [Ring, Switch]\nnpus_count: [4, 2]\nbandwidth: [50, 25]\nlatency: [500, "
        "1000]\n"
    ),
    "long": "# a network\ntopology: [Ring,\n  Switch]   # two\nnpus_count: [4,\n  2]\nbandwidth: "
    "[50, 25]\n"
    "latency: [500, 1000]\n...\n",
}


def test_spellings_of_a_network_agree(command: Path, case: Path, tmp_path: Path) -> None:
    found = set()
    for text in NETWORKS.values():
        (case / "network.yml").write_text(text)
        result = run_case(command, case, tmp_path)
        assert result.exit_code == 0, (text, result.errors)
        found.add(tuple(result.finish_ns()))
    assert len(found) == 1


def test_traces_that_the_network_has_no_place_for_are_named(command: Path, case: Path) -> None:
    """As upstream, a network of four reads four of eight traces."""
    (case / "network.yml").write_text(
        "topology: [Ring]\nnpus_count: [4]\nbandwidth: [50]\nlatency: [500]\n"
    )
    for rules in ("default", "strict"):
        result = run_case(command, case, case, rules=rules)
        assert result.exit_code == 0 and len(result.finish_ns()) == 4
        done = subprocess.run(
            [str(command), *case_options(case, rules=rules)],
            capture_output=True,
            text=True,
            timeout=HANGS_S,
            cwd=case,
            check=True,
        )
        assert "note: " in done.stderr and "workload.4.et is not read" in done.stderr
        assert "the network has 4 NPUs" in done.stderr


@pytest.mark.parametrize(
    ("file", "text", "part"),
    [
        (
            "network.yml",
            "topology: [Rink]\nnpus_count: [8]\nbandwidth: [1]\nlatency: [0]\n",
            'did you mean "Ring"?',
        ),
        (
            "network.yml",
            "topology: [Ring]\nnpus_count: [0]\nbandwidth: [1]\nlatency: [0]\n",
            ":2: npus_count[0] is 0",
        ),
        (
            "network.yml",
            "topology: [Ring]\nnpus_count: [8]\nbandwidth: [0]\nlatency: [0]\n",
            ":3: bandwidth[0] is 0",
        ),
        (
            "network.yml",
            "topology: [Ring]\nnpus_count: [8]\nbandwidth: [1]\nlatency: [-1]\n",
            ":4: latency[0] is -1",
        ),
        (
            "network.yml",
            "topology: [Ring]\nnpus_count: [8, 2]\nbandwidth: [1]\nlatency: [0]\n",
            "has 2 entries",
        ),
        ("network.yml", "topology: [Ring]\nnpus_count: [8]\nbandwidth: [1]\n", 'no key "latency"'),
        ("network.yml", "topology:\n  shape: Ring\n", ":2: nested keys"),
        (
            "network.yml",
            "topology: [Ring]\nnpus_count: [8]\ntopology: [Switch]\nbandwidth: [1]\nlatency: [0]\n",
            ":3: topology is there twice, first in line 1; remove one",
        ),
        ("system.json", '{"preferred-dataset-splits": 0}', "is 0; 1 or more was expected"),
        (
            "system.json",
            '{"endpoint-delay": "10"}',
            ":1:20: endpoint-delay is a string; a whole number was expected",
        ),
        ("system.json", '{\n "all-reduce-implementation": ["rings"]}', 'did you mean "ring"?'),
        ("system.json", '{"scheduling-policy": "LIFE"}', "one of LIFO, FIFO, EXPLICIT"),
        ("system.json", '{"roofline-enabled": 1}', "needs peak-perf"),
        ("system.json", '{"model-shared-bus": 1}', "model-shared-bus is not supported"),
        ("system.json", '{"preferred-dataset-splits": 1}', "all-reduce-implementation is missing"),
        ("system.json", '{"a": [1, 2,]}', ":1:13: expected a JSON value"),
        ("system.json", '{"a": "\\ud800"}', "surrogate"),
        ("system.json", "[" * 1000, "nested more than 200 deep"),
        ("memory.json", '{"memory-type": "POOL"}', "MEMORY_POOL"),
        (
            "memory.json",
            '{"memory-type": "MEMORY_POOL", "remote-mem-latency": 1}',
            "remote-mem-bw is missing",
        ),
        ("memory.json", "{}", "memory-type is missing"),
        ("comm_group.json", '{"0": [1, 2]}', 'group "0" has no valid id'),
        (
            "comm_group.json",
            '{"1": [1, 8]}',
            ":1:11: group 1 names an NPU that does not exist; 0 to 7 do",
        ),
        ("comm_group.json", '{"1": [1, 1]}', "names NPU 1 twice"),
    ],
)
def test_errors_name_place_and_remedy(
    command: Path, case: Path, tmp_path: Path, file: str, text: str, part: str
) -> None:
    (case / file).write_text(text)
    result = run_case(command, case, tmp_path)
    assert result.exit_code == 2
    assert part in result.errors
    assert file in result.errors
    assert len(result.errors.splitlines()) == 1


def _stderr(command: Path, case: Path, *flags: str) -> str:
    files = {
        "workload": "workload",
        "system": "system.json",
        "network": "network.yml",
        "remote-memory": "memory.json",
    }
    given = [f"--{name}-configuration={case / file}" for name, file in files.items()]
    done = subprocess.run(
        [str(command), *given, *flags],
        cwd=case,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_S,
    )
    return done.stderr


def test_what_has_no_effect_is_noted(command: Path, case: Path) -> None:
    system = json.loads((case / "system.json").read_text())
    system |= {
        "boost-mode": 1,
        "intra-dimension-scheduling": "themis",
        "active-chunk-per-dimension": 2,
    }
    (case / "system.json").write_text(json.dumps(system))
    flags = ("--rules=strict", "--comm-scale=2", "--network-backends=x")
    notes = _stderr(command, case, *flags).splitlines()
    assert all(note.startswith("note: ") for note in notes)
    for part in (
        '"boost-mode" has no effect',
        '"intra-dimension-scheduling" has no effect',
        (
            '"active-chunk-per-dimension" is not a known field and is ignored (did you mean '
            '"active-chunks-per-dimension"?'
        ),
        "--comm-scale has no effect",
        '(did you mean "network-backend"?)',
    ):
        assert any(part in note for note in notes), (part, notes)


@pytest.mark.parametrize("key", ["x", "99999999999999999999"])
def test_a_custom_implementation_is_for_a_node_number(command: Path, case: Path, key: str) -> None:
    custom = case / "custom.yml"
    custom.write_text(f"{key}: prefix\n")
    system = json.loads((case / "system.json").read_text()) | {
        "per-node-custom-implementation": str(custom)
    }
    (case / "system.json").write_text(json.dumps(system))
    assert f'custom.yml:1: expected "node id: prefix", found "{key}"' in _stderr(command, case)


def test_version_is_that_of_the_package(command: Path) -> None:
    found = re.search(r'^version = "(.*)"', (REPOSITORY / "pyproject.toml").read_text(), re.M)
    assert found is not None
    done = subprocess.run(
        [str(command), "--version"], capture_output=True, text=True, check=False, timeout=HANGS_S
    )
    assert (done.returncode, done.stdout) == (0, f"astra-sim {found[1]}\n")


def test_options_are_checked(command: Path, case: Path) -> None:
    assert "strict or default was expected" in _stderr(command, case, "--rules=sloppy")
    assert "congestion-aware, fair-share or flows:FILE was expected" in _stderr(
        command, case, "--network-backend=ns3"
    )
    strict = _stderr(command, case, "--network-backend=fair-share", "--rules=strict")
    assert "fair-share needs --rules default" in strict
    assert "--injection-scale is" in _stderr(command, case, "--injection-scale=-1")
    done = subprocess.run(
        [str(command)], capture_output=True, text=True, check=False, timeout=HANGS_S
    )
    assert (done.returncode, done.stderr) == (
        2,
        "error: --workload-configuration is missing; --help lists the options\n",
    )
    for wrong, like in (
        ("--foo=1", ""),
        ("--workload-config=x", ' (did you mean "workload-configuration"?)'),
    ):
        done = subprocess.run(
            [str(command), wrong], capture_output=True, text=True, check=False, timeout=HANGS_S
        )
        name = wrong.split("=")[0]
        expected = (
            f"error: --workload-configuration is missing, and {name} is not an option{like}; "
            "--help lists the"
        )
        assert (done.returncode, done.stderr) == (2, expected + " options\n")
    for asks in ("-h", "--help"):
        done = subprocess.run(
            [str(command), asks], capture_output=True, text=True, check=False, timeout=HANGS_S
        )
        assert (done.returncode, "--network-backend" in done.stdout) == (0, True)


def test_lines_are_upstreams(command: Path, case: Path) -> None:
    """The pattern by which scripts find the result of an NPU."""
    files = {
        "workload": "workload",
        "system": "system.json",
        "network": "network.yml",
        "remote-memory": "memory.json",
    }
    given: list[Any] = [f"--{name}-configuration={case / file}" for name, file in files.items()]
    done = subprocess.run(
        [str(command), *given, "--rules=strict"],
        cwd=case,
        capture_output=True,
        text=True,
        check=True,
        timeout=HANGS_S,
    )
    found = re.findall(
        r"sys\[(\d+)\] finished, (\d+) cycles, exposed communication (\d+) cycles\.", done.stdout
    )
    assert {npu for npu, _, _ in found} == {str(npu) for npu in range(8)}
    assert len(found) == 8
    assert f"sys[{found[0][0]}], Wall time: {found[0][1]}" in done.stdout


def test_strict_and_engine_do_not_include_each_other() -> None:
    """Two executors: what they share is model/; formats know neither."""
    readers = {"model", "formats/text", "formats/config", "formats/chakra"}
    allowed = {
        "model": {"model"},
        "engine": {"model", "engine"},
        "formats/text": {"model", "formats/text"},
        "formats/config": {"model", "formats/text", "formats/config"},
        "formats/chakra": readers,
        "strict": {*readers, "strict"},
        "formats/traces": {*readers, "engine", "formats/traces"},
        "cli": {*readers, "strict", "engine", "formats/traces", "cli"},
    }
    for part, others in allowed.items():
        sources = [
            path
            for path in (REPOSITORY / "astra-sim" / part).rglob("*")
            if path.suffix in (".h", ".cpp")
        ]
        assert sources
        for path in sources:
            included = set(re.findall(r'#include "((?:formats/)?\w+)/', path.read_text()))
            assert included <= others, f"{path.name} includes {included - others}"


FILES = {
    "system.json": '{"preferred-dataset-splits": 2, "endpoint-delay": 10, "local-mem-bw": 1600, '
    '"all-reduce-implementation": ["ring"], "scheduling-policy": "LIFO"}',
    "network.yml": (
        "topology: [ Ring ]\nnpus_count: [ 8 ]\nbandwidth: [ 50.0 ]  # GB/s\nlatency: [ 500.0 ]\n"
    ),
    "memory.json": '{"memory-type": "MEMORY_POOL", "remote-mem-latency": 500, "remote-mem-bw": 50}',
    "comm_group.json": '{"1": [0, 1, 2, 3], "2": [4, 5, 6, 7]}',
}


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(file=st.sampled_from(sorted(FILES)), data=st.data())
def test_damaged_files_end_in_a_sentence(
    command: Path, case: Path, tmp_path: Path, file: str, data: st.DataObject
) -> None:
    """Some characters changed anywhere: a result or one sentence, never a crash or a hang."""
    for name, text in FILES.items():
        (case / name).write_text(text)
    text = list(FILES[file])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at] = data.draw(
            st.sampled_from([*'0123456789[]{}",:-.eE# \n', "", "\\u00e9", "99999999999999999999"])
        )
    (case / file).write_text("".join(text))
    result = run_case(command, case, tmp_path)
    assert result.exit_code in (0, 2), result.errors
    assert (result.exit_code == 0) == (result.errors == "")
