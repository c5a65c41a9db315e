"""Data sheets of devices: bundled ones, found by any usual spelling of the name, and a user's own file."""

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from llmsim.config.errors import InputError, nearest
from llmsim.model.types import Hardware

HARDWARE_DIR = Path(__file__).resolve().parent.parent / "presets" / "hardware"
LOCATION = "llmsim/presets/hardware"


def hardware_names() -> tuple[str, ...]:
    """The names of the bundled devices, sorted; for messages."""
    return tuple(sorted(json.loads(path.read_bytes())["name"] for path in HARDWARE_DIR.glob("*.json")))


def hardware_spellings() -> tuple[str, ...]:
    """Names and aliases, for "did you mean"."""
    sheets = [json.loads(path.read_bytes()) for path in sorted(HARDWARE_DIR.glob("*.json"))]
    return tuple(spelling for sheet in sheets for spelling in (sheet["name"], *sheet["aliases"]))


def load_hardware(name: str) -> Hardware | None:
    """The data sheet of a device by its name or an alias, or from a JSON file like the bundled ones; None if unknown.

    Case, blanks, "-", "_" and a leading vendor do not matter: "H100", "h100_sxm" and "NVIDIA H100-SXM" are one device.
    Raises InputError for a file (a name ending in .json) that is not a data sheet.
    """
    if name.endswith(".json"):
        return _read(Path(name))
    wanted = _key(name)
    for path in sorted(HARDWARE_DIR.glob("*.json")):
        fields: dict[str, Any] = json.loads(path.read_bytes())
        names = [fields["name"], path.stem, *fields.pop("aliases")]
        if wanted in map(_key, names):
            fields["decode_cold_ns"] = tuple(map(tuple, fields.get("decode_cold_ns", ())))
            return Hardware(**fields)
    return None


def data_sheet(name: str) -> Hardware:
    """`load_hardware` where nothing else than a data sheet would do: InputError names the bundled ones."""
    sheet = load_hardware(name)
    if sheet is None:
        raise InputError(
            f'there is no data sheet of "{name}"{nearest(name, hardware_spellings())}; name one of '
            f"{', '.join(hardware_names())}, or the path of your own (.json)"
        )
    return sheet


def _read(path: Path) -> Hardware:
    try:
        fields = json.loads(path.read_bytes())
        if isinstance(fields, dict):
            fields.pop("aliases", None)
        return TypeAdapter(Hardware).validate_json(json.dumps(fields), strict=True, extra="forbid")
    except OSError as error:
        raise InputError(f"{path}: the data sheet cannot be read ({error.strerror or error})") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise InputError(f"{path}: {place}: {first['msg']}; see the data sheets in {LOCATION}") from None
    except ValueError as error:
        raise InputError(f"{path}: the data sheet is not JSON ({error})") from None


def _key(name: str) -> str:
    word = "".join(letter for letter in name.lower() if letter.isalnum())
    for vendor in ("nvidia", "amd", "google"):
        word = word.removeprefix(vendor)
    return word


def same_device(one: str, other: str) -> bool:
    """Whether two spellings name one device: the same sheet, or the same letters and digits."""
    if _key(one) == _key(other):
        return True
    if one.endswith(".json") or other.endswith(".json"):
        return _key(Path(one).stem) == _key(Path(other).stem)
    sheets = load_hardware(one), load_hardware(other)
    return sheets[0] is not None and sheets[0] == sheets[1]
