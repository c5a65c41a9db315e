"""Data sheets of devices: bundled ones, found by any usual spelling of the name, and a user's own
file.
"""

import json
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import NODEFAULT
from msgspec.structs import FieldInfo
from msgspec.structs import fields as fields_of
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from llmsim.config.constraints import shown
from llmsim.config.errors import InputError, nearest
from llmsim.config.files import input_files
from llmsim.model.types import Hardware
from llmsim.presets import PRESETS_DIR

HARDWARE_DIR = PRESETS_DIR / "hardware"
YOUR_OWN = "docs/how-to/first_steps.md#a-gpu-of-your-own"
"""Where a data sheet of one's own is shown."""
_LEAST = {
    "memory_bytes": 1,
    "memory_bandwidth_bytes_per_s": 1,
    "last_level_cache_bytes": 0,
    "num_sms": 1,
    "tdp_w": 1,
    "intra_node_link_bytes_per_s": 1,
    "link_domain_devices": 1,
    "network_card_bytes_per_s": 1,
    "decode_skew_stream_bytes_per_s": 1,
    "l2_bandwidth_bytes_per_s": 1,
    "idle_w": 1,
    "switching_fj_per_flop": 1,
    "traffic_fj_per_byte": 1,
    "power_window_ms": 1,
}
_MOST = 10**18
"""Of any number of a data sheet: a unit was mistaken beyond it."""
MOST_USD_PER_HOUR = 10**6


def hardware_names() -> tuple[str, ...]:
    """The names of the bundled devices, sorted; for messages."""
    return tuple(sorted(sheet["name"] for sheet in _sheets(HARDWARE_DIR).values()))


def hardware_spellings() -> tuple[str, ...]:
    """Names and aliases, for "did you mean"."""
    sheets = _sheets(HARDWARE_DIR).values()
    return tuple(spelling for sheet in sheets for spelling in (sheet["name"], *sheet["aliases"]))


@cache
def _sheets(folder: Path) -> Mapping[str, dict[str, Any]]:
    """The data sheets of a folder by file name without its end; the package's own do not change."""
    return {
        path.stem: json.loads(input_files.read_bytes(path))
        for path in sorted(folder.glob("*.json"))
    }


def load_hardware(name: str) -> Hardware | None:
    """The data sheet of a device by its name or an alias, or from a JSON file like the bundled
    ones; None if unknown.

    Case, blanks, "-", "_" and a leading vendor do not matter: "H100", "h100_sxm" and "NVIDIA
    H100-SXM" are one device. Raises InputError for a file (a name ending in .json) that is not a
    data sheet.
    """
    if name.endswith(".json"):
        return _read(Path(name))
    stem = _stems(HARDWARE_DIR).get(_key(name))
    return None if stem is None else _bundled(HARDWARE_DIR, stem)


@cache
def _stems(folder: Path) -> Mapping[str, str]:
    """The sheet of each spelling, as `_key` has it; the first sheet to have it counts."""
    stems: dict[str, str] = {}
    for stem, sheet in _sheets(folder).items():
        for spelling in (sheet["name"], stem, *sheet["aliases"]):
            stems.setdefault(_key(spelling), stem)
    return stems


@cache
def _bundled(folder: Path, stem: str) -> Hardware:
    """A bundled data sheet; searches ask for the same ones thousands of times."""
    fields = deepcopy(_sheets(folder)[stem])
    del fields["aliases"]
    fields["decode_cold_ns"] = tuple(map(tuple, fields.get("decode_cold_ns", ())))
    return Hardware(**fields)


def data_sheet(name: str) -> Hardware:
    """`load_hardware` where nothing else than a data sheet would do: InputError names the bundled
    ones.
    """
    sheet = load_hardware(name)
    if sheet is None:
        raise InputError(
            f'there is no data sheet of "{name}"{nearest(name, hardware_spellings())}; name one of '
            f"{', '.join(hardware_names())}, or the path of your own ({YOUR_OWN})"
        )
    return sheet


@cache
def _sheet_reader() -> type[BaseModel]:
    """Checks the fields of a data sheet; to make one takes as long as to read thirty sheets."""
    fields: dict[str, Any] = {one.name: (one.type, _default(one)) for one in fields_of(Hardware)}
    config = ConfigDict(strict=True, extra="forbid")
    return create_model("DataSheet", __config__=config, **fields)


def _default(field: FieldInfo) -> Any:
    """What pydantic puts where a sheet does not have the field."""
    if field.required:
        return ...
    if field.default_factory is NODEFAULT:
        return field.default
    return Field(default_factory=field.default_factory)


def _read(path: Path) -> Hardware:
    try:
        fields = json.loads(input_files.read_bytes(path))
        if isinstance(fields, dict):
            fields.pop("aliases", None)
        checked = _sheet_reader().model_validate_json(json.dumps(fields))
    except OSError as error:
        raise InputError(
            f"{path}: the data sheet cannot be read ({error.strerror or error})", file=str(path)
        ) from None
    except ValidationError as error:
        raise InputError(
            f"{path}: {_problem(error)}; {YOUR_OWN} shows a whole one", file=str(path)
        ) from None
    except ValueError as error:
        raise InputError(f"{path}: the data sheet is not JSON ({error})", file=str(path)) from None
    sheet = Hardware(**dict(checked))
    price = sheet.price_per_device_hour
    if price is not None and not 0 <= price <= MOST_USD_PER_HOUR:
        raise InputError(
            f"{path}: price_per_device_hour is {price:g}; USD from 0 to {MOST_USD_PER_HOUR:,} were "
            "expected",
            file=str(path),
        )
    numbers = {name: getattr(sheet, name) for name in _LEAST}
    numbers |= {f"flops.{name}": rate for name, rate in sheet.flops.items()}
    numbers |= {f"matrix_flops.{name}": rate for name, rate in sheet.matrix_flops.items()}
    for name, number in numbers.items():
        least = _LEAST.get(name, 1)
        if number is not None and not least <= number <= _MOST:
            raise InputError(
                f"{path}: {name} is {number}; a whole number from {least} to 10^18 was expected",
                file=str(path),
            )
    return sheet


def _problem(error: ValidationError) -> str:
    """The first one; a field that nobody knows comes before one that is missing, which it often
    explains.
    """
    problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    first = problems[0]
    place = ".".join(str(part) for part in first["loc"]) or "the file"
    if first["type"] == "extra_forbidden":
        known = [field.name for field in fields_of(Hardware)]
        return f"{place} is not a field of a data sheet{nearest(place, known)}"
    if first["type"] == "missing":
        missing = [".".join(map(str, one["loc"])) for one in problems if one["type"] == "missing"]
        return f"{', '.join(missing)} {'are' if len(missing) > 1 else 'is'} missing"
    wanted = first["msg"].removeprefix("Input should be ")
    return f"{place} is {shown(first['input'])}; {wanted} was expected"


def _key(name: str) -> str:
    word = "".join(letter for letter in name.lower() if letter.isalnum())
    for vendor in ("nvidia", "amd", "google", "intel", "aws", "huawei"):
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
