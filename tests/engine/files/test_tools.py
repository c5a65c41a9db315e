"""The tools of the command: JSON there and back, graphs, validation, generators, a million nodes in
little memory.
"""

import gzip
import json
import random
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from processes import HANGS_S

from engine import chakra_file as ck
from engine.command import run_case
from engine.files.test_chakra import _framed, _random_file, messages

__all__ = ["messages"]


def tool(command: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(command), *arguments], capture_output=True, text=True, timeout=HANGS_S, check=False
    )
    assert done.returncode == code, done.stderr
    return done


def test_json_there_and_back(command: Path, tmp_path: Path, messages: dict[str, object]) -> None:
    """All encodings, as protobuf wrote them: the same bytes; also from objects one after another,
    and gzip.
    """
    for seed in range(25):
        raw = _framed(_random_file(random.Random(seed), messages))
        source, text, target = tmp_path / "a.et", tmp_path / "a.json", tmp_path / "b.et"
        source.write_bytes(raw)
        text.write_text(tool(command, "to-json", str(source)).stdout)
        tool(command, "from-json", str(text), str(target))
        assert target.read_bytes() == raw
    objects = json.loads(text.read_text())
    text.write_text("\n".join(json.dumps(item, indent=1) for item in objects))
    packed = tmp_path / "b.et.gz"
    tool(command, "from-json", str(text), str(packed))
    assert gzip.decompress(packed.read_bytes()) == raw


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('[{"version": "1"}, {"id": -1}]', "element 2: id has to be a whole number"),
        ('[{"id": 1, "colour": 2}]', "element 1: colour is not a field"),
        ('[{"id": 1, "type": "COMPUTE"}]', 'type is "COMPUTE"'),
        ('[{"id": 1, "attr": [{"name": "x", "int32_val": 3000000000}]}]', "int32_val has to be"),
        ('[{"id": 1, "attr": [{"bool_val": true, "int64_val": 1}]}]', "second value"),
        ('[{"id": 1}', "cut off"),
        ('[{"id": 1', "cut off"),
        ('[{"id": 1} {"id": 2}]', 'neither "," nor'),
        ('[{"id": 1}] 7', "an object was expected"),
        ("[3]", "an object was expected"),
        ('{"id": 1, "data_deps": 5}', "a list was expected"),
        ('{"id": 01}', "element 1"),
    ],
)
def test_wrong_json_is_named(command: Path, tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "a.json").write_text(text)
    done = tool(command, "from-json", str(tmp_path / "a.json"), str(tmp_path / "a.et"), code=2)
    assert part in done.stderr
    assert "a.json" in done.stderr


def diamond(path: Path) -> Path:
    nodes = [
        ck.node(1, ck.COMP, micros=3),
        ck.node(2, ck.COLL, [1], comm_type=0, comm_size=512),
        ck.node(3, ck.COMP, [1]),
        ck.node(4, ck.COMP, [2, 3]),
    ]
    path.write_bytes(ck.trace(nodes))
    return path


def test_graphs_hold_all_edges(command: Path, tmp_path: Path) -> None:
    path = str(diamond(tmp_path / "a & b.et"))
    dot = tool(command, "dot", path).stdout
    assert dot.startswith("digraph")
    assert [line.strip() for line in dot.splitlines() if "->" in line] == [
        "n1 -> n2;",
        "n1 -> n3;",
        "n2 -> n4;",
        "n3 -> n4;",
    ]
    root = ElementTree.fromstring(tool(command, "graphml", path).stdout)
    space = "{http://graphml.graphdrawing.org/xmlns}"
    edges = [(e.get("source"), e.get("target")) for e in root.iter(f"{space}edge")]
    assert edges == [("1", "2"), ("1", "3"), ("2", "4"), ("3", "4")]
    data = {
        d.get("key"): d.text for n in root.iter(f"{space}node") if n.get("id") == "2" for d in n
    }
    assert data == {"name": "n2", "type": "COMM_COLL", "comm_type": "0", "comm_size": "512"}


@pytest.mark.parametrize(
    ("nodes", "parts"),
    [
        ([ck.node(2, ck.COMP, [99])], ["node 2 depends on node 99, which is not in the file"]),
        (
            [ck.node(1, ck.COMP), ck.node(2, ck.COMP, [3]), ck.node(3, ck.COMP, [2])],
            ["cycle: 2 on 3 on 2"],
        ),
        ([ck.node(7, ck.COMP), ck.node(7, ck.COMP)], ["node 7 appears twice"]),
        ([ck.node(2, ck.COMP, comm_size="big")], ["node 2", "comm_size is a string_val"]),
        (
            [ck.node(2, ck.COLL, comm_type=0, comm_size=5, pg_name=3)],
            ["pg_name is a int64_val; a string"],
        ),
        ([ck.node(2, ck.COLL, comm_size=5)], ["comm_type is missing"]),
        (
            [ck.node(2, ck.SEND, comm_size=5, comm_dst=0, comm_tag=1)],
            ["the NPU of the file itself"],
        ),
        ([ck.node(2, ck.COMP, is_cpu_op=-1)], ["is_cpu_op is a int64_val below 0"]),
        ([ck.node(2, ck.COMP, [9]), ck.node(3, ck.COLL)], ["node 2 depends", "node 3 (COMM_COLL"]),
    ],
)
def test_validation_names_the_node(
    command: Path, tmp_path: Path, nodes: list[bytes], parts: list[str]
) -> None:
    path = tmp_path / "w.0.et"
    path.write_bytes(ck.trace(nodes))
    done = tool(command, "validate", str(path), code=2)
    for part in parts:
        assert part in done.stderr
    sound = diamond(tmp_path / "w.1.et")
    assert "4 nodes, 4 dependencies" in tool(command, "validate", str(sound)).stdout


@pytest.mark.parametrize(
    "kind",
    [
        *(
            "all-reduce",
            "reduce",
            "all-gather",
            "gather",
            "scatter",
            "broadcast",
            "all-to-all",
            "reduce-scatter",
        ),
        *("reduce-scatter-block", "barrier", "send-recv", "compute"),
    ],
)
def test_every_microbenchmark_is_valid_and_runs(command: Path, tmp_path: Path, kind: str) -> None:
    case = ck.write_case(tmp_path / "case", [], ck.network("Ring", 4))
    arguments = ["--npus=4", "--size=4096", "--count=3", "--compute-micros=2", "--gzip"]
    tool(command, "generate", kind, *arguments, f"--output={case}/workload")
    tool(command, "validate", *(str(case / f"workload.{npu}.et") for npu in range(4)))
    result = run_case(command, case, tmp_path, rules="default")
    assert result.exit_code == 0, result.errors
    assert all(time is not None and time >= 6_000_000 for time in result.finish_ps())


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["generate", "all-reduces", "--npus=2", "--output=x"], 'did you mean "all-reduce"'),
        (["generate", "all-reduce", "--output=x"], "--npus=N is missing"),
        (["generate", "all-reduce", "--npus=0", "--output=x"], "1 to 1048576"),
        (["generate", "all-reduce", "--npus=2", "--colour"], "--colour"),
        (["validat", "x"], 'did you mean "validate"'),
        (["dot"], "usage: astra-sim dot FILE.et"),
        (["to-json", "/nonexistent/a.et"], "cannot open"),
    ],
)
def test_wrong_use_of_a_tool(command: Path, arguments: list[str], part: str) -> None:
    assert part in tool(command, *arguments, code=2).stderr


@pytest.mark.parametrize("verb", ["copy", "from-json"])
def test_a_file_is_not_written_over_itself_by_another_name(
    command: Path, tmp_path: Path, verb: str
) -> None:
    source = tmp_path / "a.et"
    source.write_bytes(ck.trace([ck.node(1, ck.COMP)]) if verb == "copy" else b'{"id": 1}')
    before = source.read_bytes()
    (tmp_path / "b.et").hardlink_to(source)
    for other in (source, tmp_path / "." / ".." / tmp_path.name / "a.et", tmp_path / "b.et"):
        failed = tool(command, verb, str(source), str(other), code=2)
        assert (
            "cannot be written while it is read" in failed.stderr and source.read_bytes() == before
        )
    tool(command, verb, str(source), str(tmp_path / "c.et"))


def test_a_million_nodes_stream(command: Path, tmp_path: Path) -> None:
    """Memory of a copy and of JSON stays that of a buffer; validation and a run need it all, but
    not much per node.
    """
    prefix = tmp_path / "long"
    tool(command, "generate", "compute", "--npus=1", "--count=1000000", f"--output={prefix}")
    path, text = f"{prefix}.0.et", tmp_path / "long.json"
    for arguments, most_mib in (
        (["copy", path, f"{prefix}.copy"], 16),
        (["to-json", path], 16),
        (["from-json", str(text), f"{prefix}.back"], 16),
        (["validate", path], 120),
    ):
        output = text.open("w") if arguments[0] == "to-json" else subprocess.DEVNULL
        script = (
            "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True);"
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, str(command), *arguments],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stderr) / 1024 < most_mib, (arguments, done.stderr)
    assert (
        Path(f"{prefix}.back").read_bytes()
        == Path(path).read_bytes()
        == Path(f"{prefix}.copy").read_bytes()
    )
