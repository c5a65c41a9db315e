"""A stock ASTRA-sim as backend: here a script that takes its options and prints its lines."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from processes import HANGS_S

from engine import chakra_file as ck
from engine.command import Result, run_case

SCRIPT = """#!{python}
import pathlib, sys
options = dict(word[2:].split("=", 1) for word in sys.argv[1:])
network = pathlib.Path(options["network-configuration"]).read_text()
assert "topology: [ Ring, Switch ]" in network and "npus_count: [ 2, 2 ]" in network, network
for npu in range(4):
    raw = pathlib.Path(options["workload-configuration"] + f".{{npu}}.et").read_bytes()
    assert raw[:2] != bytes([31, 139]), "upstream reads no gzip"
    print(f"[2026-01-01 00:00:00.000] [workload] [info] sys[{{npu}}] finished, {{1000 + len(raw)}} cycles, "
          f"exposed communication {{npu}} cycles.")
    print(f"[2026-01-01 00:00:00.000] [statistics] [info] sys[{{npu}}], Wall time: {{1000 + len(raw)}}")
{rest}
"""  # noqa: E501


def fake(path: Path, rest: str = "") -> Path:
    path.write_text(SCRIPT.format(python=sys.executable, rest=rest))
    path.chmod(0o755)
    return path


def run(command: Path, tmp_path: Path, binary: Path | str, *flags: str) -> Result:
    net = {
        "topology": ["Ring", "Switch"],
        "npus_count": [2, 2],
        "bandwidth": [50, 12.5],
        "latency": [500, 0.5],
    }
    case = ck.write_case(tmp_path / "case", [[ck.node(1, ck.COMP, micros=1)]] * 4, net)
    packed = case / "workload.3.et"
    packed.write_bytes(gzip.compress(packed.read_bytes()))
    # run_case asks for node times, which no external engine gives.
    options = {
        "workload": "workload",
        "system": "system.json",
        "network": "network.yml",
        "remote-memory": "memory.json",
    }
    given = [f"--{name}-configuration={case / file}" for name, file in options.items()]
    done = subprocess.run(
        [str(command), *given, f"--network-backend=external:{binary}", "--json", *flags],
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )
    return Result(
        done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr, []
    )


def test_its_lines_are_read(command: Path, tmp_path: Path) -> None:
    result = run(command, tmp_path, fake(tmp_path / "stock"))
    assert result.exit_code == 0, result.errors
    size = len(ck.trace([ck.node(1, ck.COMP, micros=1)]))
    assert result.finish_ns() == [1000 + size] * 4
    assert result.report is not None
    assert result.report["rules"] == "external"
    assert [npu["exposed_comm_ns"] for npu in result.report["npus"]] == [0, 1, 2, 3]
    assert result.report["npus"][2]["statistics"] == {"Wall time": str(1000 + size)}


def test_what_goes_wrong_there_is_told(command: Path, tmp_path: Path) -> None:
    failing = run(command, tmp_path, fake(tmp_path / "stock", "print('out of luck'); sys.exit(7)"))
    assert (failing.exit_code, "exit code 7; its last words: out of luck" in failing.errors) == (
        2,
        True,
    )
    killed = run(command, tmp_path, fake(tmp_path / "stock", "import os; os.abort()"))
    assert (killed.exit_code, "ended by signal 6" in killed.errors) == (2, True)
    missing = run(command, tmp_path, tmp_path / "nowhere")
    assert (missing.exit_code, "is no program" in missing.errors) == (2, True)
    refused = run(command, tmp_path, tmp_path / "stock", "--timeline=x.json")
    assert (refused.exit_code, "need the rules of this program" in refused.errors) == (2, True)


def test_missing_lines_are_no_success(command: Path, tmp_path: Path) -> None:
    """Upstream ends with 0 although NPUs never finish."""
    path = tmp_path / "stock"
    path.write_text(
        "#!/bin/sh\necho '[workload] [info] sys[1] finished, 5 cycles, exposed communication 5 "
        "cycles.'\n"
    )
    path.chmod(0o755)
    result = run(command, tmp_path, path)
    assert result.exit_code == 3
    assert "3 NPU(s)" in result.errors
    assert result.finish_ns() == [None, 5, None, None]


def test_our_own_command_is_such_an_engine(command: Path, tmp_path: Path) -> None:
    """Strict rules behind a wrapper give what strict rules give."""
    wrapper = tmp_path / "stock"
    wrapper.write_text(f'#!/bin/sh\nexec {command} --rules=strict "$@"\n')
    wrapper.chmod(0o755)
    external = run(command, tmp_path, wrapper)
    assert external.exit_code == 0, external.errors
    direct = run_case(command, tmp_path / "case", tmp_path)
    assert external.finish_ns() == direct.finish_ns()


@pytest.mark.parametrize("rules", ["strict", "default"])
def test_any_rules_may_be_named(command: Path, tmp_path: Path, rules: str) -> None:
    assert run(command, tmp_path, fake(tmp_path / "stock"), f"--rules={rules}").exit_code == 0
