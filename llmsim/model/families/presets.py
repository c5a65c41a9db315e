"""Finds a model by Hugging Face id among the bundled presets, or by the path of a config.json."""

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from llmsim.config.errors import InputError, nearest
from llmsim.config.files import input_files
from llmsim.model.families.hf_config import parse_config
from llmsim.model.types import ModelConfig
from llmsim.presets import PRESETS_DIR

MODELS_DIR = PRESETS_DIR / "models"
CONFIG, HF_QUANT_CONFIG = "config.json", "hf_quant_config.json"
LOCATION = "llmsim/presets/models"
MOST_SHOWN = 8
"""Names of models that an error repeats."""


def model_names() -> tuple[str, ...]:
    """The Hugging Face ids of the bundled presets, without their aliases, sorted."""
    return tuple(sorted(_preset_id(path) for path in MODELS_DIR.glob("*/*.json")))


def load_model(name_or_path: str) -> ModelConfig:
    """The model that a cluster file names.

    A path that exists (a config.json, or a folder that holds one; relative to the working
    directory) wins, as in transformers; else the bundled preset of that Hugging Face id or alias,
    or of its unambiguous last part, in any case. A file's model is called by the last two parts of
    its path ("meta-llama/Llama-3.1-8B"). Raises InputError (unknown, unreadable, malformed, wrong
    field) or NotYetError (a family that does not run yet).
    """
    path = _local_file(name_or_path)
    if path is not None:
        return parse_config(
            read_config(path), name=_name_of(path), source=str(path), folder=path.parent
        )
    return _preset(*_find_preset(name_or_path))


@cache
def _preset(name: str, path: Path) -> ModelConfig:
    """A file of the package, which does not change while it runs."""
    fields = read_object(path)
    model = parse_config(fields, name=name, source=f"{LOCATION}/{_preset_id(path)}.json")
    notes = (*fields.get("_notes", ()), *model.notes)
    return replace(model, source=str(fields.get("_source", model.source)), notes=notes)


def config_path(name_or_path: str) -> Path:
    """The config.json behind a model's name or path, as `load_model` finds it; raises InputError as
    that does.
    """
    return _local_file(name_or_path) or _find_preset(name_or_path)[1]


def read_object(path: Path) -> Mapping[str, Any]:
    """The JSON object in a file; InputError with line and column if there is none."""
    try:
        value = json.loads(input_files.read_bytes(path).decode())
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); give a readable config.json",
            file=str(path),
        ) from error
    except json.JSONDecodeError as error:
        place = f"{path}:{error.lineno}:{error.colno}"
        raise InputError(f"{place}: {error.msg}; a config.json is one JSON object") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: byte {error.start} is not UTF-8; a config.json is one JSON object",
            file=str(path),
        ) from error
    except (RecursionError, ValueError) as error:
        raise InputError(
            f"{path}: a number or nesting is too large; a config.json is one JSON object",
            file=str(path),
        ) from error
    if not isinstance(value, dict):
        raise InputError(
            f"{path}: holds a JSON {type(value).__name__}; a config.json is one JSON object",
            file=str(path),
        )
    return value


def read_config(path: Path) -> Mapping[str, Any]:
    """A config.json with the `hf_quant_config.json` that NVIDIA's older checkpoints put beside it.

    A collection of configurations in one folder gives both files the same prefix
    (`MODEL_config.json` and `MODEL_hf_quant_config.json`).
    """
    fields = read_object(path)
    beside = path.with_name(path.name.removesuffix(CONFIG) + HF_QUANT_CONFIG)
    if (
        "quantization_config" in fields
        or not path.name.endswith(CONFIG)
        or not input_files.is_file(beside)
    ):
        return fields
    quantization = read_object(beside).get("quantization")
    if not isinstance(quantization, dict):
        raise InputError(f'{beside}: field "quantization" is missing; it must be an object')
    return {**fields, "quantization_config": {"quant_method": "modelopt", **quantization}}


def _local_file(name: str) -> Path | None:
    """The config.json that `name` leads to, if it is a path; InputError for a path that leads
    nowhere.
    """
    if not name.strip() or "\0" in name:
        raise InputError(
            f"the model name is {name!r}; give a Hugging Face id or the path of a config.json"
        )
    path = Path(name)
    looks_like_path = name.startswith((".", "/", "~")) or name.endswith(".json")
    try:
        if input_files.is_file(path):
            return path
        if input_files.is_file(path / "config.json"):
            return path / "config.json"
        folder = path.is_dir()
    except OSError:
        folder = False
    if looks_like_path:
        problem = "is a folder without a config.json" if folder else "does not exist"
        raise InputError(
            f'model "{name}" {problem}; give the path of a config.json or of the folder that '
            "holds it"
        )
    return None


def _name_of(path: Path) -> str:
    """`<org>/<model>` as far as the path tells; the Hugging Face cache hides it in
    `models--<org>--<model>`.
    """
    cached = [part for part in path.parts if part.startswith("models--")]
    if cached:
        return cached[-1].removeprefix("models--").replace("--", "/")
    place = path.parent if path.name == "config.json" else path.with_suffix("")
    return "/".join(part for part in place.parts[-2:] if part.strip("./")) or path.stem


def _preset_id(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@cache
def _presets_of(folder: Path) -> Mapping[str, Path]:
    """The files of a folder of presets by id and alias; the package's own do not change."""
    known: dict[str, Path] = {}
    for path in sorted(folder.glob("*/*.json")):
        known[_preset_id(path)] = path
        known.update((alias, path) for alias in read_object(path).get("_aliases", ()))
    return MappingProxyType(known)


def _file_of_id(name: str) -> Path | None:
    """The preset that is called exactly so; None where the aliases in the files have to be read."""
    organisation, _, model = name.partition("/")
    if organisation not in os.listdir(MODELS_DIR):
        return None
    file_name = f"{model}.json"
    folder = MODELS_DIR / organisation
    return folder / file_name if file_name in os.listdir(folder) else None


def _find_preset(name: str) -> tuple[str, Path]:
    """(canonical id or alias, file) of a preset."""
    exact = _file_of_id(name)
    if exact is not None:
        return name, exact
    known = _presets_of(MODELS_DIR)
    wanted = name.lower()
    full = [key for key in known if key.lower() == wanted]
    tail = [key for key in known if key.lower().rpartition("/")[2] == wanted]
    matches = full or tail
    if len(matches) == 1:
        return matches[0], known[matches[0]]
    if matches:
        raise InputError(f'model "{name}" may be {" or ".join(sorted(matches))}; give the full id')
    raise _unknown(name, known)


def _unknown(name: str, known: Mapping[str, Path]) -> InputError:
    """Says which names are like it."""
    wanted = name.lower()
    by_lower = {key.lower(): key for key in (*known, *(key.rpartition("/")[2] for key in known))}
    close = nearest(wanted, by_lower)
    for lower, key in by_lower.items():
        close = close.replace(f'"{lower}"', f'"{key}"')
    bundled = model_names()
    word = wanted.rpartition("/")[0] or wanted
    akin = [one for one in bundled if word in one.lower()]
    more = ", ..." if len(akin) > MOST_SHOWN else ""
    such_as = f", such as {', '.join(akin[:MOST_SHOWN])}{more}" if akin else ""
    return InputError(
        f'unknown model "{name}"{close}; {len(bundled)} are bundled in {LOCATION}{such_as}; for '
        "any other, give the path of its config.json",
        field="model_name",
        value=name,
    )
