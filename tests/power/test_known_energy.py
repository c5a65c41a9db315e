"""Energies of a cost table take the place of the active power while their operators run."""

import json
from pathlib import Path
from typing import Any

import pytest

from llmsim.cli import main

ROOT = Path(__file__).resolve().parents[2]
WATTS = 55.0


def summary(tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[str]) -> dict[str, Any]:
    table = tmp_path / "table.csv"
    table.write_text(
        "\n".join(
            ["operator,tokens,new_tokens,cached_tokens,sequences,latency_us,energy_uj", *rows]
        )
    )
    capsys.readouterr()
    code = main(
        [
            "run",
            "--cluster-config",
            str(ROOT / "cluster_config" / "single_node_power_instance.json"),
            "--json",
            "--dataset",
            str(ROOT / "dataset" / "example_10.jsonl"),
            "--cost-source",
            "roofline" if not rows else "auto",
            *(["--cost-table", str(table)] if rows else []),
        ]
    )
    captured = capsys.readouterr()
    assert code == 0, captured.err
    found: dict[str, Any] = json.loads(captured.out)
    assert found["invariants"]["12 energy"] == "ok"
    return found


def matrix(latency_us: float, energy_uj: float | str) -> list[str]:
    return [
        f"gate_up_proj,{tokens},,,,{latency_us * tokens},{energy_uj}" for tokens in (1, 100, 4096)
    ]


def busy_s(found: dict[str, Any], operator: str) -> float:
    rows = (
        found["time_sources"]["operators"]
        if "time_sources" in found
        else found["sources"]["operators"]
    )
    return sum(float(row["time_s"]) for row in rows if row["operator"] == operator)


def test_an_operator_draws_what_its_rows_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stated = [f"gate_up_proj,{n},,,,{100 * n},{WATTS * 100 * n}" for n in (1, 100, 4096)]
    silent = [f"gate_up_proj,{n},,,,{100 * n}," for n in (1, 100, 4096)]
    with_energy, without = (summary(tmp_path, capsys, rows) for rows in (stated, silent))
    assert with_energy["duration"] == without["duration"]
    (group,), (plain,) = with_energy["energy"]["groups"], without["energy"]["groups"]
    took_s = busy_s(with_energy, "gate_up_proj")
    active_w = plain["active_j"] / plain["active_s"]
    assert took_s > 0.1
    assert plain["active_j"] - group["active_j"] == pytest.approx(
        took_s * (active_w - WATTS), rel=1e-4
    )
    assert with_energy["energy"]["total_j"] - without["energy"]["total_j"] == pytest.approx(
        group["active_j"] - plain["active_j"], rel=1e-6
    )


def test_attention_draws_the_mean_of_its_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"prefill,,{n},0,,{n},{n * 70}" for n in (1, 1000)]
    rows += [f"decode,,,{k},{n},{n * 10},{n * 10 * 70}" for n in (1, 64) for k in (1, 4000)]
    found = summary(tmp_path, capsys, rows)
    plain = summary(tmp_path, capsys, [row.rsplit(",", 1)[0] + "," for row in rows])
    active_w = plain["energy"]["groups"][0]["active_j"] / plain["energy"]["groups"][0]["active_s"]
    saved = plain["energy"]["groups"][0]["active_j"] - found["energy"]["groups"][0]["active_j"]
    assert saved == pytest.approx(busy_s(found, "attention") * (active_w - 70), rel=1e-4)
