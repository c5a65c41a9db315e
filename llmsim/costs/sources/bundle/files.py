"""Finds the profile bundle of a deployment below the profile directories, and says what exists when
it is not there.
"""

from pathlib import Path

from msgspec import Struct

from llmsim.config.errors import InputError
from llmsim.config.files import input_files
from llmsim.costs.source import CostRequest
from llmsim.model import Dtypes, short_dtype

NEEDED = ("dense.csv", "attention.csv")
OPTIONAL = ("per_sequence.csv", "indexer.csv", "moe.csv", "skew.csv")
OLDER = (
    "layers.csv",
    "attention.csv",
    "predictions/attn_prefill_predictions.csv",
    "predictions/attn_decode_predictions.csv",
)
"""Files of a bundle of the older generation; only the first is always there."""


class BundleFiles(Struct, frozen=True):
    """Folder of one tensor-parallel degree, and that of degree 1 for layers that do not depend on
    it.
    """

    root: Path
    """The profile directory that it was found in."""
    folder: Path
    folder_tp1: Path | None
    older: bool = False
    """layers.csv instead of dense.csv: read by `OlderBundleSource`."""

    def label(self, path: Path) -> str:
        """A file's name in results: without the place of the profile directory, which differs by
        machine.
        """
        return f"profile bundle {path.relative_to(self.root).as_posix()}"

    def paths(self) -> list[Path]:
        """Every file that the bundle source may read, existing ones only, in a fixed order."""
        if self.older:
            return [self.folder / name for name in OLDER if input_files.is_file(self.folder / name)]
        folders = dict.fromkeys(
            folder for folder in (self.folder, self.folder_tp1) if folder is not None
        )
        return [
            folder / name
            for folder in folders
            for name in NEEDED + OPTIONAL
            if input_files.is_file(folder / name)
        ]


def variant_name(request: CostRequest) -> str:
    """Folder name of a precision: weight dtype, and "-kv" with the KV dtype where that differs from
    activations.
    """
    return variant_of(request.dtypes)


def variant_of(dtypes: Dtypes) -> str:
    """As `variant_name`, of a deployment's types."""
    weight, activation, kv = (
        short_dtype(name) for name in (dtypes.weight, dtypes.activation, dtypes.kv)
    )
    return weight if kv == activation else f"{weight}-kv{kv}"


def find_bundle(request: CostRequest) -> tuple[BundleFiles | None, str]:
    """The bundle, of either generation, or None and the sentence that says what is missing and what
    is there.
    """
    looked: list[str] = []
    for root in request.profile_dirs:
        if not root.is_dir():
            raise InputError(
                f'the profile directory "{root}" does not exist; give one that holds '
                "<hardware>/<model>/"
            )
        hardware = _child(root, request.hardware_name)
        model = _model_folder(hardware, request.model.name) if hardware else None
        if model is None:
            hardware_there = [p.name for p in input_files.entries(root) if p.is_dir()]
            folders = _models(hardware) if hardware else hardware_there[:12]
            there = f"{'models' if hardware else 'hardware'} there: {', '.join(folders) or 'none'}"
            looked.append(
                f'"{root}" has no profile of {request.model.name} on "{request.hardware_name}" '
                f"({there})"
            )
            continue
        found, reason = _in_model_folder(root, model, request)
        if found:
            return found, ""
        looked.append(reason)
    if not request.profile_dirs:
        looked.append("no profile directory was given (--profile-dir)")
    return None, "; ".join(looked)


def _in_model_folder(
    root: Path, model: Path, request: CostRequest
) -> tuple[BundleFiles | None, str]:
    variant = variant_name(request)
    base = model / variant if input_files.is_folder(model / variant) else model
    degrees = _degrees(base)
    if base == model and not degrees:
        return None, f'"{model}" has no profile for "{variant}" (there are: {_variants(model)})'
    folder = base / f"tp{request.layout.tp}"
    if request.layout.tp not in degrees:
        exist = ", ".join(f"tp{d}" for d in degrees) or "none"
        return None, f'"{base}" has no profile for tp{request.layout.tp} (there are: {exist})'
    missing = [name for name in NEEDED if not input_files.is_file(folder / name)]
    if missing and input_files.is_file(folder / "layers.csv"):
        return BundleFiles(root, folder, None, older=True), ""
    if missing:
        raise InputError(
            f'the profile bundle "{folder}" lacks {", ".join(missing)}; profile again, or give '
            "another folder"
        )
    tp1 = base / "tp1"
    shared = any(input_files.is_file(tp1 / name) for name in ("dense.csv", "moe.csv"))
    return BundleFiles(root, folder, tp1 if shared else None), ""


def _variants(model: Path) -> str:
    """The names of a model's variants that have profiles; "none" where no one has."""
    folders = [path for path in input_files.entries(model) if path.is_dir()]
    return ", ".join(sorted(path.name for path in folders if _degrees(path))) or "none"


def _degrees(folder: Path) -> list[int]:
    names = (
        [p.name for p in input_files.entries(folder) if p.is_dir()]
        if input_files.is_folder(folder)
        else []
    )
    return sorted(int(name[2:]) for name in names if name.startswith("tp") and name[2:].isdecimal())


def _child(folder: Path, name: str) -> Path | None:
    """The sub-folder `name`, exactly or, where only one matches, without regard to case."""
    if not name:
        return None
    if input_files.is_folder(folder / name):
        return folder / name
    alike = [
        p for p in input_files.entries(folder) if p.is_dir() and p.name.lower() == name.lower()
    ]
    return alike[0] if len(alike) == 1 else None


def _model_folder(hardware: Path, model_name: str) -> Path | None:
    """`<org>/<model>`, or `<model>` alone where the bundle leaves the organisation out."""
    folder: Path | None = hardware
    for part in model_name.strip("/").split("/"):
        folder = _child(folder, part) if folder else None
    return folder or _child(hardware, model_name.rstrip("/").split("/")[-1])


def _models(hardware: Path) -> list[str]:
    """`<org>/<model>` folders below a hardware folder, for messages."""
    found = [
        model
        for org in hardware.iterdir()
        if org.is_dir()
        for model in org.iterdir()
        if model.is_dir()
    ]
    return sorted(f"{model.parent.name}/{model.name}" for model in found)[:12]
