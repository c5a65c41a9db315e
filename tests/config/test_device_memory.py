"""Memory of devices that the cluster file leaves to the data sheet: the same run as with its
figures, and a note.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from cluster_examples import instance, parsed, small
from hypothesis import given
from hypothesis import strategies as st

from llmsim.cli import run_main
from llmsim.config import EngineOverrides, resolve
from llmsim.config.errors import InputError
from llmsim.lowering.device_memory import sheet_memory
from llmsim.model import load_hardware
from llmsim.model.hardware import HARDWARE_DIR, hardware_names

Json = dict[str, Any]


def without(*keys: str, hardware: str = "H100", **memory: float) -> Json:
    """The small cluster without these keys of npu_mem ("npu_mem": the whole of it)."""
    document = small()
    one = instance(document)
    one["hardware"] = hardware
    one["npu_mem"].update(memory)
    for key in keys:
        del (one if key == "npu_mem" else one["npu_mem"])[key]
    return document


@given(
    st.sampled_from(hardware_names()),
    st.sampled_from([("npu_mem",), ("mem_size",), ("mem_bw",), ()]),
)
def test_what_is_not_given_is_the_data_sheets(hardware: str, keys: tuple[str, ...]) -> None:
    cluster = parsed(without(*keys, hardware=hardware, mem_size=17, mem_bw=23))
    (group,) = resolve(cluster, EngineOverrides(), sheet=sheet_memory(cluster.path)).groups
    sheet = load_hardware(hardware)
    assert sheet is not None
    missing = ("mem_size", "mem_bw") if keys == ("npu_mem",) else keys
    assert group.memory_from_sheet == missing
    assert group.memory.capacity_bytes == (
        sheet.memory_bytes if "mem_size" in missing else 17 << 30
    )
    bandwidth = sheet.memory_bandwidth_bytes_per_s if "mem_bw" in missing else 23 * 10**9
    assert group.memory.bandwidth_bytes_per_s == bandwidth


def test_hardware_without_a_data_sheet_needs_its_memory() -> None:
    for document, field in (
        (without("npu_mem", hardware="H10O"), "npu_mem"),
        (without("mem_bw", hardware="H10O"), "npu_mem.mem_bw"),
    ):
        cluster = parsed(document)
        with pytest.raises(InputError) as caught:
            resolve(cluster, EngineOverrides(), sheet=sheet_memory(cluster.path))
        message = str(caught.value)
        assert (
            f'nodes[0].instances[0].{field} is missing, and there is no data sheet of "H10O"'
            in message
        )
        assert 'did you mean "H100"' in message and "give mem_size and mem_bw" in message
        with pytest.raises(
            InputError, match=f"{field} is missing; give mem_size and mem_bw in npu_mem"
        ):
            resolve(cluster, EngineOverrides())


def run(path: Path, capsys: pytest.CaptureFixture[str]) -> Json:
    trace = "synthetic:n=20,rate=8,input=fixed:200,output=fixed:40,seed=3"
    assert (
        run_main(
            [
                "--cluster-config",
                str(path),
                "--dataset",
                trace,
                "--cost-source",
                "roofline",
                "--json",
            ]
        )
        == 0
    )
    found: Json = json.loads(capsys.readouterr().out)
    return found


def test_a_sheet_of_ones_own_beside_the_file_counts_and_the_run_is_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sheet = HARDWARE_DIR / "l40s.json"
    fields = json.loads(sheet.read_text(encoding="utf-8")) | {
        "memory_bytes": 40 << 30,
        "silicon_system": None,
    }
    (tmp_path / "mine.json").write_text(json.dumps(fields), encoding="utf-8")
    results = []
    for name, document in (
        ("left_out", without("npu_mem", hardware="mine.json")),
        ("given", without(hardware="mine.json", mem_size=40, mem_bw=864)),
    ):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        results.append(run(path, capsys))
    left_out, given_ = results
    notes = [note for note in left_out["notes"] if note not in given_["notes"]]
    assert notes == [
        "npu_mem of mine.json: mem_size 40 GiB and mem_bw 864 GB/s from its data sheet, the "
        "cluster file does not say; the driver of a device reports a little less memory"
    ]
    assert {**left_out, "notes": []} == {**given_, "notes": []}
