"""Bundled data sheets of devices, found by any usual spelling of the name."""

import json
from pathlib import Path
from typing import Any

from llmsim.model.types import Hardware

HARDWARE_DIR = Path(__file__).resolve().parent.parent / "presets" / "hardware"
LOCATION = "llmsim/presets/hardware"


def hardware_names() -> tuple[str, ...]:
    """The names of the bundled devices, sorted; for messages."""
    return tuple(sorted(json.loads(path.read_bytes())["name"] for path in HARDWARE_DIR.glob("*.json")))


def load_hardware(name: str) -> Hardware | None:
    """The data sheet of a device by its name or an alias; None if there is no preset.

    Case, blanks, "-", "_" and a leading vendor do not matter: "H100", "h100_sxm" and "NVIDIA H100-SXM" are one device.
    """
    wanted = _key(name)
    for path in sorted(HARDWARE_DIR.glob("*.json")):
        fields: dict[str, Any] = json.loads(path.read_bytes())
        names = [fields["name"], path.stem, *fields.pop("aliases")]
        if wanted in map(_key, names):
            return Hardware(**fields)
    return None


def _key(name: str) -> str:
    word = "".join(letter for letter in name.lower() if letter.isalnum())
    for vendor in ("nvidia", "amd", "google"):
        word = word.removeprefix(vendor)
    return word
