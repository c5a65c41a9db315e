"""Data sheets: names, physical plausibility, and a source for every number."""

import json
from pathlib import Path
from typing import Any

import pytest

from llmsim.config.errors import InputError
from llmsim.model import DTYPES, Hardware, hardware, hardware_names, load_hardware
from llmsim.model.hardware import HARDWARE_DIR
from tests.shared_data import shared

EXPECTED = {
    "A100": "A100-80GB-SXM",
    "A100-40GB": "A100-40GB-SXM",
    "A100-PCIe": "A100-80GB-PCIe",
    "A30": "A30",
    "a40": "A40",
    "A6000": "RTX-A6000",
    "RTX3090": "RTX-3090",
    "RTX4090": "RTX-4090",
    "RTXPRO6000": "RTX-PRO-6000",
    "rtx_pro_6000_server": "RTX-PRO-6000",
    "H100": "H100-SXM",
    "H100-SXM": "H100-SXM",
    "h100_sxm": "H100-SXM",
    "NVIDIA H100 80GB HBM3": "H100-SXM",
    "H100 PCIe": "H100-PCIe",
    "H200": "H200",
    "B200": "B200",
    "B300": "B300",
    "GB200": "GB200",
    "GB300": "GB300",
    "L4": "L4",
    "l40s": "L40S",
    "TPU-v5e": "TPU-v5e",
    "TPU-v6e": "TPU-v6e",
    "AMD MI300X": "MI300X",
    "H800-SXM5": "H800",
    "A800": "A800",
    "H100 NVL": "H100-NVL",
    "mi325x": "MI325X",
    "AMD Instinct MI355X": "MI355X",
    "TPUv5p": "TPU-v5p",
    "Google TPU7x": "TPU-v7",
    "Intel Gaudi3": "Gaudi-3",
    "AWS Trainium2": "Trainium2",
    "Huawei Ascend 910B": "Ascend-910B",
    "910C": "Ascend-910C",
    "NVIDIA H20": "H20",
    "GH200": "GH200-96GB",
    "GH200-HBM3e": "GH200-144GB",
    "NVIDIA GeForce RTX 5090": "RTX-5090",
    "RTX 6000 Ada": "RTX-6000-Ada",
    "NVIDIA L40": "L40",
    "L20": "L20",
    "A10": "A10",
    "DGX Spark": "GB10",
    "mi350x": "MI350X",
}


@pytest.mark.parametrize(("spelling", "name"), EXPECTED.items())
def test_names_and_aliases(spelling: str, name: str) -> None:
    hardware = load_hardware(spelling)
    assert hardware is not None
    assert hardware.name == name


@pytest.mark.parametrize("name", ["", "H1000", "gaudi", "-", "NVIDIA"])
def test_unknown_device_has_no_sheet(name: str) -> None:
    assert load_hardware(name) is None


def test_no_spelling_means_two_devices() -> None:
    seen: dict[str, str] = {}
    for path in HARDWARE_DIR.glob("*.json"):
        fields = json.loads(path.read_text())
        for word in {
            "".join(filter(str.isalnum, w.lower()))
            for w in (fields["name"], path.stem, *fields["aliases"])
        }:
            assert seen.setdefault(word, path.stem) == path.stem


@pytest.mark.parametrize("name", hardware_names())
def test_figures_are_plausible_and_sourced(name: str) -> None:
    hardware = load_hardware(name)
    assert hardware is not None
    assert hardware.source
    assert 10 << 30 <= hardware.memory_bytes <= (4096 if hardware.vendor == "Intel" else 400) << 30
    assert 10**11 < hardware.memory_bandwidth_bytes_per_s < 10**13
    assert 10**10 < hardware.intra_node_link_bytes_per_s < hardware.memory_bandwidth_bytes_per_s
    assert 1 << 22 < hardware.last_level_cache_bytes < 1 << 29
    assert set(hardware.flops) <= set(DTYPES)
    most = max(hardware.flops[name] for name in ("int8", "fp8") if name in hardware.flops)
    assert hardware.flops["bf16"] <= most or name in ("B300", "GB300")
    # Every device is bandwidth-bound at one token: flops per byte far above the 1 that a decode
    # step needs.
    assert 30 < hardware.flops["bf16"] / hardware.memory_bandwidth_bytes_per_s < 1000
    kernels = ("fa2", "fa3", "flashinfer", "triton", "pallas", "fused_sdpa", "nki", "ascend_fa")
    assert hardware.attention_kernel in kernels
    assert set(hardware.sources) <= set(hardware.__struct_fields__)
    for constant in ("decode_skew_stream_bytes_per_s", "l2_bandwidth_bytes_per_s"):
        assert (getattr(hardware, constant) is None) == (constant not in hardware.sources)
    if hardware.tdp_w is None:
        assert "not published" in hardware.sources["tdp_w"]


def test_measured_constants() -> None:
    pro, consumer = load_hardware("RTXPRO6000"), load_hardware("RTX4090")
    assert pro is not None
    assert consumer is not None
    assert (pro.decode_skew_stream_bytes_per_s, pro.l2_bandwidth_bytes_per_s) == (
        32 * 10**9,
        3 * 10**12,
    )
    assert (consumer.decode_skew_stream_bytes_per_s, consumer.l2_bandwidth_bytes_per_s) == (
        24 * 10**9,
        14 * 10**11,
    )
    assert "skew.csv" in pro.sources["decode_skew_stream_bytes_per_s"]


def test_bandwidth_of_the_server_card_agrees_with_a_recorded_profile() -> None:
    """The profile's lm_head streams 1.05 GB, eight times the cache: close to the data sheet, never
    above it.
    """
    path = shared(
        "groundtruth/profiler/perf/RTXPRO6000/meta-llama/Llama-3.1-8B/bf16/tp1/per_sequence.csv"
    )
    row = next(line for line in path.read_text().splitlines() if line.startswith("lm_head,1,"))
    achieved = 128_256 * 4096 * 2 / (float(row.split(",")[2]) * 1e-6)
    hardware = load_hardware("RTXPRO6000")
    assert hardware is not None
    assert 0.85 < achieved / hardware.memory_bandwidth_bytes_per_s < 1


def test_all_fields_that_a_sheet_lacks_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text('{"name": "own", "vendor": "ours"}', encoding="utf-8")
    with pytest.raises(InputError) as error:
        load_hardware(str(path))
    said = str(error.value)
    for name in ("memory_bytes", "flops", "num_sms", "intra_node_link_bytes_per_s", "source"):
        assert name in said.partition(" are missing; ")[0]
    assert "first_steps.md#a-gpu-of-your-own" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"memory_bandwidth_bytes_per_s": -2},
            "memory_bandwidth_bytes_per_s is -2; a whole number from 1 to",
        ),
        ({"flops": {"bf16": 0}}, "flops.bf16 is 0; a whole number from 1 to"),
        ({"flops": {"bf16": "fast"}}, 'flops.bf16 is "fast"; a valid integer was expected'),
        ({"matrix_flops": {"bf16": 0}}, "matrix_flops.bf16 is 0; a whole number from 1 to"),
        ({"num_sms": 10**30}, "num_sms is 1000000000000000000000000000000"),
        ({"tpd_w": 300}, 'tpd_w is not a field of a data sheet (did you mean "tdp_w"?)'),
        ({"tdp_w": None, "memory_bytes": None}, "memory_bytes is null"),
    ],
)
def test_a_sheet_that_no_device_has(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    sheet = json.loads(next(HARDWARE_DIR.glob("h100*.json")).read_text()) | change
    if "tpd_w" in change:
        del sheet["tdp_w"]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(sheet))
    with pytest.raises(InputError) as caught:
        load_hardware(str(path))
    assert said in str(caught.value)


@pytest.mark.parametrize("given", [{"silicon_system": None}, {}])
def test_a_sheet_of_a_device_that_the_database_does_not_have(
    given: dict[str, Any], tmp_path: Path
) -> None:
    """A null or absent silicon_system means the same, in a user's sheet and in a bundled one."""
    fields = json.loads((HARDWARE_DIR / "h100_sxm.json").read_text(encoding="utf-8"))
    del fields["silicon_system"]
    (tmp_path / "mine.json").write_text(json.dumps(fields | given), encoding="utf-8")
    sheet = load_hardware(str(tmp_path / "mine.json"))
    assert sheet is not None and sheet.silicon_system is None


def test_a_bundled_sheet_without_silicon_system_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llmsim.model import hardware

    fields = json.loads((HARDWARE_DIR / "h100_sxm.json").read_text(encoding="utf-8"))
    del fields["silicon_system"]
    (tmp_path / "h100_sxm.json").write_text(json.dumps(fields), encoding="utf-8")
    monkeypatch.setattr(hardware, "HARDWARE_DIR", tmp_path)
    sheet = load_hardware("H100")
    assert sheet is not None and sheet.silicon_system is None


def test_fields_that_need_not_be_given_have_their_defaults(tmp_path: Path) -> None:
    fields = json.loads((HARDWARE_DIR / "h100_sxm.json").read_text(encoding="utf-8"))
    needed = {
        name: fields[name]
        for name in Hardware.__struct_fields__[: -len(Hardware.__struct_defaults__)]
    }
    (tmp_path / "own.json").write_text(json.dumps(needed), encoding="utf-8")
    sheet = load_hardware(str(tmp_path / "own.json"))
    assert sheet == Hardware(**needed) and sheet.sources == {} and sheet.similar_to is None


def test_what_checks_sheets_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    create = hardware.create_model

    def make(title: str, /, **fields: Any) -> Any:
        made.append(title)
        return create(title, **fields)

    monkeypatch.setattr(hardware, "create_model", make)
    hardware._sheet_reader.cache_clear()
    (tmp_path / "a.json").write_bytes((HARDWARE_DIR / "h100_sxm.json").read_bytes())
    sheets = [load_hardware(str(tmp_path / "a.json")) for _ in range(3)]
    assert sheets[0] is not None and sheets == sheets[:1] * 3 and len(made) == 1
