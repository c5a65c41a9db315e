"""A hand-over to another network simulator: messages out, their times in."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import chakra_file as ck
from engine.command import Result, run_case

Run = Callable[..., Result]
BYTES, NPUS = 65_536, 4


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """An all-reduce on a ring, and a message that waits for it."""
    reduce = ck.node(1, ck.COLL, comm_type=ck.ALL_REDUCE, comm_size=BYTES * NPUS)
    send = ck.node(2, ck.SEND, [1], comm_size=1000, comm_dst=2, comm_tag=0)
    receive = ck.node(2, ck.RECV, [1], comm_size=1000, comm_src=0, comm_tag=0)
    traces = [[reduce, *more] for more in ([send], [], [receive], [])]
    return ck.write_case(tmp_path / "case", traces, ck.network("Ring", NPUS))


@pytest.fixture
def run(command: Path, case: Path, tmp_path: Path) -> Run:
    def with_flags(*flags: str) -> Result:
        return run_case(command, case, tmp_path, flags=flags, rules="default")

    return with_flags


def flows(run: Run, path: Path) -> list[dict[str, str]]:
    assert run(f"--flows={path}").exit_code == 0
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_times(path: Path, rows: list[dict[str, str]]) -> str:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return f"--network-backend=flows:{path}"


def test_times_of_an_idle_network_give_its_run(run: Run, tmp_path: Path) -> None:
    rows = flows(run, tmp_path / "flows.csv")
    assert len(rows) == 2 * (NPUS - 1) * NPUS + 1
    assert {row["bytes"] for row in rows} == {str(BYTES), "1000"}
    for row in rows:  # 50 GB/s, 500 ns for each of one or two links
        hops = 2 if row["to"] == "2" and row["from"] == "0" else 1
        row["duration_ps"] = str(int(row["bytes"]) * 20 + hops * 500_000)
    times = write_times(tmp_path / "times.csv", rows)
    again = run(times, f"--flows={tmp_path}/again.csv")
    assert again.times() == run().times()
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "flows.csv").read_text()


def test_a_slower_message_delays_what_waits_for_it(run: Run, tmp_path: Path) -> None:
    rows = flows(run, tmp_path / "flows.csv")
    for row in rows:
        row["duration_ps"] = "7000000" if row["bytes"] == "1000" else "2000000"
    result = run(write_times(tmp_path / "times.csv", rows))
    delay = 10_000  # of each endpoint
    after = 6 * (2_000_000 + delay)
    assert result.finish_ps() == [
        after + 7_000_000 + delay,
        after,
        after + 7_000_000 + delay,
        after,
    ]


def test_files_of_packet_simulators(run: Run, tmp_path: Path) -> None:
    rows = flows(run, tmp_path / "flows.csv")
    assert run(f"--flows={tmp_path}/flows.cm").exit_code == 0
    head, count, *lines = (tmp_path / "flows.cm").read_text().splitlines()
    assert (head, count) == (f"Nodes {NPUS}", f"Connections {len(rows)}")
    assert lines == [
        f"{row['from']}->{row['to']} id {at} start {row['start_ps']} size {row['bytes']}"
        for at, row in enumerate(rows, start=1)
    ]
    assert run(f"--flows={tmp_path}/flows.txt").exit_code == 0
    first, *lines = (tmp_path / "flows.txt").read_text().splitlines()
    assert first == str(len(rows))
    for row, line in zip(rows, lines, strict=True):
        *fields, start = line.split()
        assert fields == [row["from"], row["to"], "3", "100", row["bytes"]]
        assert int(start.replace(".", "")) == int(row["start_ps"])


def goal(text: str) -> list[dict[str, int]]:
    """The messages of a GOAL file, by tag: ends, bytes, and the ns at which they are sent."""
    head, *ranks = text.split("\nrank ")
    assert head.split() == ["num_ranks", str(len(ranks))]
    sent: dict[int, dict[str, int]] = {}
    received: dict[int, tuple[int, int, int]] = {}
    for number, body in enumerate(ranks):
        at: dict[str, int] = {}
        calc: dict[str, int] = {}
        sends: dict[str, tuple[int, int, int]] = {}
        lines = [line.split() for line in body.splitlines()]
        assert lines[0] == [str(number), "{"] and lines[-1] == ["}"]
        for first, *words in lines[1:-1]:
            label = first.rstrip(":")
            if words[0] == "requires":
                at[label] = at[words[1]] + calc.get(label, 0)
                continue
            assert label not in at
            at[label] = calc[label] = int(words[1]) if words[0] == "calc" else 0
            if words[0] != "calc":
                ends = (int(words[3]), int(words[1].removesuffix("b")), int(words[5]))
                if words[0] == "send":
                    sends[label] = ends
                else:
                    received[ends[2]] = (ends[0], number, ends[1])
        for label, (to, size, tag) in sends.items():
            sent[tag] = {"from": number, "to": to, "bytes": size, "ns": at[label]}
    assert {tag: (one["from"], one["to"], one["bytes"]) for tag, one in sent.items()} == received
    return [sent[tag] for tag in range(len(sent))]


def test_a_round_trip_by_goal(run: Run, tmp_path: Path) -> None:
    """A stand-in that knows GOAL times its messages on an idle network."""
    rows = flows(run, tmp_path / "flows.csv")
    assert run(f"--flows={tmp_path}/flows.goal").exit_code == 0
    messages = goal((tmp_path / "flows.goal").read_text())
    for row, one in zip(rows, messages, strict=True):
        assert [int(row[key]) for key in ("from", "to", "bytes")] == [
            one[key] for key in ("from", "to", "bytes")
        ]
        assert int(row["start_ps"]) // 1000 == one["ns"]
        hops = min((one["to"] - one["from"]) % NPUS, (one["from"] - one["to"]) % NPUS)
        row["duration_ps"] = str(one["bytes"] * 20 + hops * 500_000)
    times = write_times(tmp_path / "times.csv", rows)
    assert run(times).times() == run().times()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("from,to,number\n", 'has no column "duration_ps"'),
        ("from,to,number,duration_ps\n0,1,0,1.5\n", ':2: duration_ps is "1.5"'),
        ("from,to,number,duration_ps\n0,1\n", ':2: number is ""'),
        ("from,to,number,duration_ps\n0,1,0,5\n0,1,0,6\n", ":3: message 0 from NPU 0 to NPU 1 has"),
        ("from,to,number,duration_ps\n0,1,0,5\n", "has no time of message 0 (65536 bytes) from"),
    ],
)
def test_what_is_no_file_of_times(run: Run, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "times.csv").write_text(text)
    result = run(f"--network-backend=flows:{tmp_path}/times.csv")
    assert result.exit_code == 2
    assert said in result.errors


def test_options_that_do_not_go_together(run: Run, tmp_path: Path) -> None:
    result = run("--flows=flows.xml")
    assert result.exit_code == 2 and "a name that ends in .csv, .cm (HTSim)" in result.errors
    result = run(f"--flows={tmp_path}/flows.csv", "--rules=strict")
    assert result.exit_code == 2 and "--flows needs --rules default" in result.errors
