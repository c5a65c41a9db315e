"""Whether this installation is whole: what `llmsim doctor` looks at."""

import importlib.util
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from llmsim.plurals import plural

SILICON = "aiconfigurator-core"
SILICON_VERSION = "0.12.0"
LEAST_PYTHON = (3, 11)
EXTRAS = {
    "matplotlib": "plot",
    "optuna": "search",
    "perfetto": "timeline",
    "vllm": "vllm",
}
"""Distributions that one feature needs, and the extra that installs them."""
GPU_TIMEOUT_S = 20


@dataclass(frozen=True)
class Check:
    """One thing that was looked at; `remedy` is empty where it is well."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def checks() -> list[Check]:
    """All checks, in the order in which a defect would stop a run."""
    looks: tuple[tuple[str, Callable[[], Check]], ...] = (
        ("python", _python),
        ("native module", _native),
        ("dependencies", _dependencies),
        ("presets", _presets),
        ("examples", _examples),
        ("silicon database", _silicon),
        ("cache", _cache),
        ("extras", _extras),
        ("gpu", _gpu),
        ("first run", _first_run),
    )
    return [_guarded(name, look) for name, look in looks]


def as_json(found: list[Check]) -> dict[str, Any]:
    """The keys of `llmsim doctor --json`."""
    return {"checks": [asdict(one) for one in found]}


def _guarded(name: str, look: Callable[[], Check]) -> Check:
    """A look that fails in any way is a check that is not well."""
    try:
        return look()
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        return Check(name, False, reason, "install llmsim again")


def _python() -> Check:
    ok = sys.version_info[:2] >= LEAST_PYTHON
    detail = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    return Check("python", ok, detail, "" if ok else "use Python 3.11 or later")


def _native() -> Check:
    from llmsim import __version__, _native, native_build

    stale = native_build.why_stale(_native)
    detail = stale or f"llmsim {__version__}, {_native.__file__}"
    return Check("native module", not stale, detail, native_build.BUILD if stale else "")


def _dependencies() -> Check:
    wrong = []
    needed = [one for one in metadata.requires("llmsim") or () if ";" not in one]
    for requirement in needed:
        found = re.match(r"([\w.-]+)(?:>=([\d.]+))?$", requirement.replace(" ", ""))
        if found is None:
            continue
        name, least = found[1], found[2] or "0"
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{name} is missing")
            continue
        if _numbers(version) < _numbers(least):
            wrong.append(f"{name} is {version}, at least {least} is needed")
    detail = "; ".join(wrong) or f"{len(needed)} packages in the needed versions"
    return Check("dependencies", not wrong, detail, "pip install --upgrade llmsim" if wrong else "")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])


def _presets() -> Check:
    from llmsim.model.families.presets import model_names
    from llmsim.model.hardware import hardware_names

    models, devices = len(model_names()), len(hardware_names())
    ok = models > 0 and devices > 0
    return Check(
        "presets",
        ok,
        f"{devices} devices, {models} models bundled",
        "" if ok else "install llmsim again",
    )


def _examples() -> Check:
    from llmsim.installation.examples import bundled, folder

    missing = [one.name for one in bundled() if not one.path.is_file()]
    detail = (
        f"missing: {', '.join(missing)}"
        if missing
        else f"{len(list(bundled()))} examples in {folder()}"
    )
    return Check("examples", not missing, detail, "install llmsim again" if missing else "")


def _silicon() -> Check:
    """The database exists for Linux on x86-64 and Python before 3.14 alone; elsewhere its absence
    is well.
    """
    name = "silicon database"
    to_be_had = (
        sys.platform == "linux"
        and platform.machine() == "x86_64"
        and sys.version_info[:2] < (3, 14)
    )
    try:
        version = metadata.version(SILICON)
    except metadata.PackageNotFoundError:
        detail = f"{SILICON} is not installed; operator times come from data sheets or your bundles"
        if not to_be_had:
            return Check(name, True, f"{detail} (it has no wheel for this platform)")
        return Check(name, False, detail, f"pip install {SILICON}=={SILICON_VERSION}")
    if version != SILICON_VERSION:
        return Check(
            name,
            False,
            f"{SILICON} is {version}, tested with {SILICON_VERSION}",
            f"pip install {SILICON}=={SILICON_VERSION}",
        )
    return Check(name, True, f"{SILICON} {version}")


def _cache() -> Check:
    from llmsim.config.errors import LlmsimError
    from llmsim.costs.cache import cache_dir
    from llmsim.export.files import check_writable_folder

    folder = cache_dir()
    if folder is None:
        return Check("cache", False, "there is no home folder", "set LLMSIM_CACHE to a folder")
    try:
        check_writable_folder(folder)
    except LlmsimError as error:
        return Check("cache", False, str(error), "set LLMSIM_CACHE to a folder that you may write")
    files = [path for path in folder.iterdir() if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 1e6
    return Check(
        "cache", True, f"{folder}: {len(files)} cost {plural(len(files), 'table')}, {size:.0f} MB"
    )


def _extras() -> Check:
    """What is not installed only disables its feature, so that this check is always well."""
    there = [name for name in EXTRAS if importlib.util.find_spec(name) is not None]
    absent = [f"{name} (llmsim[{extra}])" for name, extra in EXTRAS.items() if name not in there]
    detail = f"installed: {', '.join(there) or 'none'}; optional: {', '.join(absent) or 'none'}"
    return Check("extras", True, detail)


def _gpu() -> Check:
    """No GPU is needed; one allows `python -m llmsim.profiler measure`."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return Check("gpu", True, "none found; simulations need none")
    command = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=GPU_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return Check("gpu", True, "nvidia-smi does not answer; simulations need no GPU")
    names = "; ".join(done.stdout.strip().splitlines())
    return Check("gpu", True, names or "nvidia-smi lists none; simulations need none")


def _first_run() -> Check:
    """The first example, simulated: ten requests with every invariant."""
    from llmsim.api.run import run
    from llmsim.installation.examples import find

    cluster, trace = find("h100_llama31_8b").path, find("example_10").path
    result = run(cluster, trace, cost_source="roofline", steps=False, series=False)
    completed = result.summary["completed"]
    ok = completed == 10
    return Check(
        "first run",
        ok,
        f"{completed} of 10 requests of h100_llama31_8b",
        "" if ok else "report this as a defect",
    )
