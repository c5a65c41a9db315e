"""`make fuzz-strict` with stand-ins for a stock ASTRA-sim: this program itself, one with a planted
defect, and one that crashes.
"""

from pathlib import Path

import pytest

from engine.upstream.__main__ import main
from llmsim.export.chakra import read_trace


def stand_in(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def fuzz(command: Path, upstream: Path, keep: Path, first: int, count: int) -> int:
    seeds = [f"--seed={first}", f"--count={count}"]
    return main([str(upstream), f"--ours={command}", f"--keep={keep}", *seeds])


def test_the_program_itself_does_not_differ(
    command: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, network in (("Unaware", "unaware"), ("Congestion_Aware", "aware")):
        upstream = stand_in(tmp_path, name, f'exec "{command}" "$@"')
        assert fuzz(command, upstream, tmp_path / "kept", 20, 6) == 0
        assert f"congestion {network}\n" in capsys.readouterr().out
    assert not (tmp_path / "kept").exists()


def test_a_defect_is_found_and_made_smaller(
    command: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stand-in knows no rendezvous: one message is enough to show it."""
    drop = 'for a do shift; case $a in --rend*) ;; *) set -- "$@" "$a";; esac; done'
    upstream = stand_in(tmp_path, "aware", f'{drop}\nexec "{command}" "$@"')
    assert fuzz(command, upstream, tmp_path / "kept", 15, 1) == 1
    out = capsys.readouterr().out
    assert "different: 1" in out and "--rendezvous-protocol=true" in out
    (kept,) = (tmp_path / "kept").iterdir()
    nodes = [node for path in kept.glob("workload.*.et") for node in read_trace(path)]
    assert len(nodes) <= 4
    ours, theirs = (kept / "commands.sh").read_text().splitlines()
    assert ours.startswith(str(command)) and theirs.startswith(str(upstream))


def test_upstream_that_crashes_is_counted(
    command: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream = stand_in(tmp_path, "unaware", "echo no such thing >&2; kill -ABRT $$")
    assert fuzz(command, upstream, tmp_path / "kept", 0, 2) == 0
    out = capsys.readouterr().out
    assert "upstream failed: 2" in out
    assert "upstream failed 2 times: SIGABRT: no such thing" in out


def test_what_is_no_executable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path)])
    assert ended.value.code == 2
    assert "which is no executable file" in capsys.readouterr().err
