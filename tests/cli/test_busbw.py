"""`llmsim topology busbw`: the table of nccl-tests, and what it refuses."""

import json
from pathlib import Path

import pytest

from llmsim.cli import main

RAILS = {
    "preset": "rails",
    "hardware": "H100",
    "reducing_network": True,
    "parameters": {
        "nodes": 4,
        "devices_per_node": 8,
        "switch_gb_per_s": 450,
        "switch_latency_ns": 500,
        "nic_latency_ns": 1000,
    },
}


def written(folder: Path, **changes: object) -> str:
    path = folder / "rails.json"
    path.write_text(json.dumps(RAILS | changes), encoding="utf-8")
    return str(path)


def test_the_table_and_the_json_have_the_same_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["topology", "busbw", written(tmp_path), "-b", "1M", "-e", "1G", "-f", "4"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("# all_reduce, 32 devices on 4 servers")
    assert main([*words, "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert table["servers"] == 4 and table["measured"] is None
    rows = [line.split(maxsplit=4) for line in lines if not line.startswith("#")]
    assert len(rows) == len(table["rows"]) == 6
    for (size, time, algbw, busbw, plan), row in zip(rows, table["rows"], strict=True):
        assert (int(size), plan) == (row["size_bytes"], row["plan"])
        assert (time, algbw, busbw) == tuple(
            f"{row[key]:.2f}" for key in ("time_us", "algbw_gb_per_s", "busbw_gb_per_s")
        )
    assert table["rows"][-1]["plan"] == "CollNet"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--devices", "33"], "--devices"),
        (["--devices", "0,0"], "two different devices"),
        (["--devices", "1"], "two different devices"),
        (["--devices", "a"], "--devices"),
        (["--collective", "allreduce"], "--collective"),
        (["--min-bytes", "1X"], "--min-bytes"),
        (["--min-bytes", "1G", "--max-bytes", "1M"], "--max-bytes"),
        (["--factor", "1"], "--factor"),
        (["--plan", "star"], "--plan"),
        (["--algorithm", "star"], '--algorithm is "star"; ring, direct,'),
        (["--algorithm", "ring", "--plan", "ring"], "exclude each other"),
        (["--algorithm", "ring", "--collective", "vllm_all_reduce"], "use all_reduce"),
        (
            ["--algorithm", "doubleBinaryTree", "--collective", "all_gather"],
            "has no messages for this collective",
        ),
        (["--hardware", "H1000"], "--hardware"),
        (["--collective", "vllm_all_reduce"], "inside a server"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["topology", "busbw", written(tmp_path), *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_network_of_an_unknown_device_names_its_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, hardware="H1000")
    assert main(["topology", "busbw", path]) == 2
    assert f"{path}: hardware: there is no data sheet" in capsys.readouterr().err


GB = 100
HOPS_US = 1.0


@pytest.mark.parametrize(
    ("algorithm", "collective", "messages", "share"),
    [
        ("ring", "all_reduce", 6, 6 / 4),
        ("direct", "all_reduce", 2, 6 / 4),
        ("halvingDoubling", "all_reduce", 4, 6 / 4),
        ("ring", "all_gather", 3, 3 / 4),
        ("direct", "all_to_all", 1, 3 / 4),
    ],
)
def test_algorithms_take_their_messages_and_bytes(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    algorithm: str,
    collective: str,
    messages: int,
    share: float,
) -> None:
    """Alpha-beta: messages one after the other, and the share of the vector that a port sends."""
    switch = {"kind": "switch", "size": 4, "bandwidth_gb_per_s": GB, "latency_ns": 500}
    path = tmp_path / "switch.json"
    path.write_text(json.dumps({"hardware": "H100", "dimensions": [switch]}), encoding="utf-8")
    words = ["--algorithm", algorithm, "--collective", collective, "-b", "64K", "-e", "1G"]
    assert main(["topology", "busbw", str(path), *words, "-f", "32", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert table["model"].endswith("of the engine, as --collective-costs links takes it")
    for row in table["rows"]:
        by_hand = messages * HOPS_US + row["size_bytes"] * share / GB / 1e3
        assert row["time_us"] == pytest.approx(by_hand, rel=1e-6), row
