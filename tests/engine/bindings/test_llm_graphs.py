"""Iterations of models as traces: valid, runnable under both rules, and with the operations that
the layout implies.
"""

import gzip
import json
import random
import re
import subprocess
from pathlib import Path

import networkx
import pytest
from processes import HANGS_S

from engine import chakra_file as ck
from engine.command import REPOSITORY
from engine.files.test_chakra import _framed, _random_file, messages
from llmsim.cli import main
from llmsim.export.chakra import COLLECTIVES, TraceNode, read_trace, to_networkx, write_trace
from llmsim.model import load_model, model_names
from llmsim.model.parallel.transforms import split_layers

__all__ = ["messages"]
DENSE, MOE = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B"


def generate(folder: Path, model: str, *options: str) -> list[list[TraceNode]]:
    assert main(["graph", "generate", model, "--output", str(folder), *options]) == 0
    ranks = len(list(folder.glob("trace.*.et")))
    return [list(read_trace(folder / f"trace.{rank}.et")) for rank in range(ranks)]


def run(command: Path, folder: Path, rules: str, backend: str) -> list[int]:
    network = next(folder.glob("network.*"))
    arguments = {
        "rules": rules,
        "network-backend": backend,
        "workload-configuration": folder / "trace",
        "system-configuration": folder / "system.json",
        "network-configuration": network,
        "remote-memory-configuration": folder / "memory.json",
        "comm-group-configuration": folder / "comm_group.json",
    }
    options = [f"--{name}={value}" for name, value in arguments.items()]
    done = subprocess.run(
        [str(command), *options, "--json"],
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [npu["finish_ns"] for npu in json.loads(done.stdout)["npus"]]


LAYOUTS = [
    (DENSE, 1, 1, 1, 1),
    (DENSE, 4, 1, 1, 1),
    (DENSE, 2, 2, 2, 1),
    (MOE, 4, 1, 1, 4),
    (MOE, 2, 1, 2, 4),
    (MOE, 1, 2, 4, 4),
]


@pytest.mark.parametrize(("model", "tp", "pp", "dp", "ep"), LAYOUTS)
def test_layouts(
    command: Path, tmp_path: Path, model: str, tp: int, pp: int, dp: int, ep: int
) -> None:
    sizes = [
        f"--{name}={value}" for name, value in (("tp", tp), ("pp", pp), ("dp", dp), ("ep", ep))
    ]
    traces = generate(tmp_path, model, *sizes, "--tokens=64", "--sequences=4", "--micro-batches=2")
    assert len(traces) == tp * pp * dp
    paths = [str(path) for path in tmp_path.glob("trace.*.et")]
    assert (
        subprocess.run(
            [str(command), "validate", *paths], capture_output=True, check=False
        ).returncode
        == 0
    )
    config = load_model(model)
    kinds = [
        [n.attributes.get("comm_type") for n in trace if n.type == "COMM_COLL"] for trace in traces
    ]
    exchanged = config.num_moe_layers * (ep > tp)
    for trace in traces:
        names = [node.name.split(".")[-1] for node in trace]
        assert names.count("qkv_proj") == 2 * config.num_layers // pp  # two micro-batches
    total = sum(row.count(COLLECTIVES.index("ALL_TO_ALL")) for row in kinds)
    assert total == 2 * 2 * exchanged * tp * dp
    reduces = sum(row.count(COLLECTIVES.index("ALL_REDUCE")) for row in kinds)
    per_batch = 1 + 2 * config.num_layers - exchanged if tp > 1 else 0
    assert reduces == 2 * per_batch * tp * dp
    ends = run(command, tmp_path, "default", "congestion-unaware")
    fair = run(command, tmp_path, "default", "fair-share")
    assert all(slow >= fast for slow, fast in zip(fair, ends, strict=True))
    if len(traces) > 1:  # upstream's network file has two NPUs at least
        assert min(run(command, tmp_path, "strict", "congestion-unaware")) > 0
    # A rank cannot end before the kernels of its own chain.
    for trace, end in zip(traces, ends, strict=True):
        busy = sum(int(node.attributes["duration_ps"]) for node in trace if node.type == "COMP")
        assert end * 1000 >= busy


def test_json_and_back_byte_for_byte(command: Path, tmp_path: Path) -> None:
    generate(tmp_path, DENSE, "--tokens=8")
    trace, text, back = tmp_path / "trace.0.et", tmp_path / "t.json", tmp_path / "back.et"
    with text.open("w") as out:
        subprocess.run([str(command), "to-json", str(trace)], stdout=out, check=True)
    subprocess.run([str(command), "from-json", str(text), str(back)], check=True)
    assert back.read_bytes() == trace.read_bytes()


def test_work_is_split_not_lost(tmp_path: Path) -> None:
    """The ranks' operations add up to about those of one device, and tensor parallelism repeats
    only small ones.
    """
    one = generate(tmp_path / "one", DENSE, "--tokens=64")
    two = generate(tmp_path / "two", DENSE, "--tokens=64", "--tp=2")
    staged = generate(tmp_path / "staged", DENSE, "--tokens=64", "--pp=4")

    def operations(traces: list[list[TraceNode]]) -> int:
        return sum(int(node.attributes.get("num_ops", 0)) for trace in traces for node in trace)

    assert operations(staged) == operations(one)
    assert operations(one) <= operations(two) <= 1.02 * operations(one)


def test_weights_are_read_as_far_as_tokens_touch_them(tmp_path: Path) -> None:
    """An embedding reads rows, not its table; few tokens read few experts, and exchanging ranks
    share those of all.
    """

    def moved(name: str, *options: str) -> int:
        trace = generate(tmp_path / str(len(list(tmp_path.iterdir()))), MOE, *options)[0]
        return next(
            int(n.attributes["tensor_size"]) for n in trace if n.name.split(".")[-1] == name
        )

    config = load_model(MOE)
    assert moved("embedding", "--tokens=8") < 8 * 3 * 2 * config.hidden_size
    expert = 3 * config.hidden_size * config.moe_intermediate_size * 2
    one, many = moved("moe", "--tokens=1", "--sequences=1"), moved("moe", "--tokens=4096")
    assert config.num_experts_per_tok * expert <= one < 1.01 * config.num_experts_per_tok * expert
    assert config.num_experts * expert <= many
    # Two replicas bring twice the tokens, and each rank reads its half of the experts that they
    # touch.
    both = moved("moe", "--tokens=8", "--dp=2", "--ep=2")
    assert both == pytest.approx(moved("moe", "--tokens=16") / 2, rel=0.01)


def test_stages_have_the_layers_that_runs_give_them(tmp_path: Path) -> None:
    traces = generate(tmp_path, "meta-llama/Llama-3.1-70B", "--tokens=8", "--pp=3")
    layers = [sum(node.name.endswith("qkv_proj") for node in trace) for trace in traces]
    assert layers == list(split_layers(80, 3))
    sent = [node.attributes["comm_size"] for node in traces[0] if node.type == "COMM_SEND"]
    assert sent == [
        8 * load_model("meta-llama/Llama-3.1-70B").hidden_size * 2 * 2
    ]  # hidden states and residual


@pytest.mark.parametrize(("hardware", "gb_per_s"), [("H100", 3350), ("B200", 7700), ("A100", 2039)])
def test_reductions_run_at_the_devices_own_memory(
    tmp_path: Path, hardware: str, gb_per_s: int
) -> None:
    generate(tmp_path, DENSE, "--tokens=8", "--tp=2", f"--hardware={hardware}")
    system = json.loads((tmp_path / "system.json").read_text())
    assert system["local-mem-bw"] == gb_per_s


@pytest.mark.parametrize("model", model_names())
def test_every_preset(tmp_path: Path, model: str) -> None:
    (trace,) = generate(tmp_path, model, "--tokens=8")
    assert len({node.id for node in trace}) == len(trace)
    assert sum(node.type == "COMP" for node in trace) > 3 * load_model(model).num_layers


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--tp=3"], "tp 3"),
        (["--ep=2"], "ep"),
        (["--pp=99"], "pp is 99"),
        (["--tokens=5", "--micro-batches=2"], "do not come out even"),
        (["--hardware=H1000"], 'data sheet of "H1000"'),
        (["--tp=0"], "tp is 0"),
        (["--dp=99999999999999999999"], "dp is 99999999999999999999; 1 to"),
        (["--dp=1000000"], "tp x pp x dp is 1000000; 65536 ranks at most"),
        (["--tokens=99999999999999999999"], "tokens is 99999999999999999999; 1 to"),
        (["--context=99999999999999999999"], "context is 99999999999999999999; 0 to"),
    ],
)
def test_layouts_that_cannot_be(
    tmp_path: Path, options: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["graph", "generate", DENSE, "--output", str(tmp_path), *options]) != 0
    assert part in capsys.readouterr().err


def test_traces_there_and_back(tmp_path: Path, messages: dict[str, object]) -> None:
    nodes = [
        TraceNode(0, "a", "COMP", 7, [], [], {"is_cpu_op": False, "num_ops": 2**40}),
        TraceNode(
            300, "b", "COMM_COLL", 0, [0], [0], {"pg_name": "3", "involved_dim": (True, False)}
        ),
    ]
    path = tmp_path / "a.et"
    write_trace(path, nodes)
    assert list(read_trace(path)) == nodes
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert list(read_trace(path)) == nodes
    for seed in range(20):  # protobuf's own files, all encodings
        records = _random_file(random.Random(seed), messages)
        path.write_bytes(_framed(records))
        for record, node in zip(records[1:], read_trace(path), strict=True):
            assert (node.id, node.name, node.duration_micros) == (
                record.id,
                record.name,
                record.duration_micros,
            )
            assert node.data_deps == list(record.data_deps)
            for attribute in record.attr:
                which = attribute.WhichOneof("value") or ""
                first = next(a for a in record.attr if a.name == attribute.name)
                whole = which == "bool_val" or "int" in which or "fixed" in which
                if first is attribute and whole and which.endswith("_val"):
                    assert node.attributes[attribute.name] == getattr(attribute, which), which


def test_the_schema_in_python_is_that_of_the_file() -> None:
    """Names and numbers of all messages that traces are made of."""
    from llmsim.export.chakra_schema import AttributeProto, GlobalMetadata, Node

    text = (REPOSITORY / "astra-sim/formats/chakra/et_def.proto").read_text()
    for message in (AttributeProto, GlobalMetadata, Node):
        body = text[text.index(f"message {message.DESCRIPTOR.name} {{") :].split("\n}\n")[0]
        declared = {
            (name, int(number), bool(repeated))
            for repeated, name, number in re.findall(r"(repeated )?\w+ (\w+) = (\d+);", body)
        }
        here = {(one.name, one.number, one.is_repeated) for one in message.DESCRIPTOR.fields}
        assert here == declared


def test_networkx(tmp_path: Path) -> None:
    path = tmp_path / "a.et"
    path.write_bytes(
        ck.trace([ck.node(1, ck.COMP), ck.node(2, ck.COLL, [1], comm_type=0, comm_size=8)])
    )
    graph = to_networkx(read_trace(path))
    assert networkx.is_directed_acyclic_graph(graph)
    assert list(graph.edges(data="kind")) == [(1, 2, "data")]
    assert graph.nodes[2]["comm_size"] == 8


def test_damaged_files_end_in_a_sentence(tmp_path: Path) -> None:
    from llmsim.config.errors import InputError

    raw = ck.trace(
        [ck.node(1, ck.COMP, micros=3), ck.node(2, ck.COLL, [1], comm_type=0, involved_dim=[True])]
    )
    path = tmp_path / "a.et"
    for cut in range(len(raw)):
        path.write_bytes(raw[:cut])
        try:
            assert len(list(read_trace(path))) <= 2
        except InputError as error:
            assert "a.et" in str(error)
