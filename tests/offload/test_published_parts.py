"""The published DRAM part files are read as they are: capacity and bus of a channel, and which keys
speed it up.
"""

from pathlib import Path

import pytest

from llmsim.costs.sources.pim_part import PARTS_DIR, PimPart, read_pim_part
from tests.shared_data import shared

# Of a channel, by hand from the files: GiB, GB/s (bus width / 8 x data rate), CL x tCK in ns, idle
# and peak power in W.
PUBLISHED = {
    "DDR4_8GB_3200_pim": (8, 25.6, 13.86, 0.623, 3.803),
    "HBM2_1GB_2000_pim": (1, 32.0, 14.0, 0.16, 0.76),
    "LPDDR4X_2GB_4266_pim": (2, 8.532, 16.848, 0.07, 0.771),
    "LPDDR5_2GB_6400_pim": (2, 12.8, 10.625, 0.071, 0.877),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parts_are_read_unchanged(name: str) -> None:
    part = read_pim_part(shared("artifact/pim_config") / f"{name}.ini")
    gib, gb_per_s, access_ns, idle_w, peak_w = PUBLISHED[name]
    assert part.channel_bytes == gib << 30
    assert part.bus_bytes_per_s == round(gb_per_s * 1e9)
    assert part.access_ps == round(access_ns * 1000)
    assert (part.idle_w, part.peak_w) == (idle_w, peak_w)
    assert part.inside_bytes_per_s > 2 * part.bus_bytes_per_s


def changed(tmp_path: Path, key: str, value: object) -> PimPart:
    """The bundled HBM2 part with one key of its file changed."""
    lines = (PARTS_DIR / "HBM2_1GB_2000_pim.ini").read_text(encoding="utf-8").splitlines()
    found = [line for line in lines if line.split("=")[0].strip() == key]
    assert len(found) == 1, key
    path = tmp_path / f"{key}.ini"
    path.write_text(
        "\n".join(f"{key} = {value}" if line == found[0] else line for line in lines),
        encoding="utf-8",
    )
    return read_pim_part(path)


@pytest.mark.parametrize(
    ("key", "value", "field", "ratio"),
    [
        (
            "tFAW",
            60,
            "inside_bytes_per_s",
            0.5,
        ),  # [timing]: 16 banks in four groups, twice as far apart
        ("data_rate", 4000, "bus_bytes_per_s", 2.0),  # [other]
        ("bus_width", 256, "bus_bytes_per_s", 2.0),  # [system]
        ("idle_power", 320, "idle_w", 2.0),  # [other]
        ("bankgroups", 8, "banks", 2.0),  # [dram_structure]
    ],
)
def test_each_section_matters(
    key: str, value: int, field: str, ratio: float, tmp_path: Path
) -> None:
    before = read_pim_part(PARTS_DIR / "HBM2_1GB_2000_pim.ini")
    assert getattr(changed(tmp_path, key, value), field) == pytest.approx(
        ratio * getattr(before, field), rel=1e-6
    )


def test_without_stated_powers_they_follow_from_the_currents(tmp_path: Path) -> None:
    """[power]: VDD x IDD3N and VDD x IDD4R of every device of the channel."""
    text = (PARTS_DIR / "HBM2_1GB_2000_pim.ini").read_text(encoding="utf-8")
    kept = [line for line in text.splitlines() if not line.startswith(("idle_power", "peak_power"))]
    path = tmp_path / "currents.ini"
    path.write_text("\n".join(kept), encoding="utf-8")
    part = read_pim_part(path)
    values = {line.split("=")[0].strip(): line.split("=")[1] for line in kept if "=" in line}
    volts, idle, reading = (
        float(values[name].split("#")[0].split(";")[0]) for name in ("VDD", "IDD3N", "IDD4R")
    )
    devices = int(values["bus_width"].split("#")[0]) // int(values["device_width"].split("#")[0])
    assert part.idle_w == pytest.approx(volts * idle * devices / 1000)
    assert part.peak_w == pytest.approx(volts * reading * devices / 1000)
