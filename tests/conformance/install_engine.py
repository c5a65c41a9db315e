"""Makes an environment in which a release of vLLM or SGLang can schedule, on a machine without a
GPU.

`python install_engine.py vllm VERSION FOLDER` (or `sglang`): a virtual environment of this
interpreter with what the release's wheel asks for, but for kernels, and with the wheel's own files
but for compiled ones. It lies in FOLDER, by engine and version, and its interpreter is printed.
VERSION `newest` asks the registry. Nothing is done where the release is there already.
"""

import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

TORCH = "torch>=2.13,<2.14"
NAME = re.compile(r"[A-Za-z0-9._-]+")
MISSING = re.compile(r"No matching distribution found for ([A-Za-z0-9._-]+)\S*")
NEWEST = re.compile(r"\(([^)]+)\)")
"""How `pip index versions` names the newest version, behind the package."""


def named(names: str) -> re.Pattern[str]:
    """A pattern of requirements whose names begin with one of these words."""
    return re.compile("(" + "|".join(names.split()) + ")", re.IGNORECASE)


@dataclass(frozen=True)
class Engine:
    """What an engine's scheduler needs of the engine's requirements."""

    left_out: re.Pattern[str]
    """Kernels, devices, and what would bring another torch along."""
    alone: re.Pattern[str]
    """Those of them that the scheduler's modules import: without what they ask for in turn."""
    asked_by_them: list[str]
    any_version: str = "none"
    """One of those whose version another of them decides, which may be younger than the release."""
    compiled: str = "no such file"
    """A part of the names of compiled files that the scheduler does run."""


ENGINES = {
    "vllm": Engine(
        named(
            "torch nvidia nvtx pynv instanttensor cuda cupy flashinfer flash triton humming"
            " tilelang quack ray deep tokenspeed fastsafetensors runai amd tpu xgrammar compressed"
            " depyf outlines lm-format numba mistral opencv apache-tvm aiconfigurator"
        ),
        named(
            "xgrammar compressed-tensors depyf outlines lm-format numba mistral opencv apache-tvm"
            " aiconfigurator"
        ),
        ["astor", "interegular", "pycountry", "llvmlite", "pandas"],
        any_version="apache-tvm-ffi",
    ),
    "sglang": Engine(
        named(
            "torch nvidia nvshmem cuda flash humming kernels quack tilelang sgl deepseek decord av="
            " timm tml py-spy xgrammar compressed numba mistral apache-tvm smg-grpc"
        ),
        named("xgrammar compressed-tensors numba mistral apache-tvm smg-grpc nvidia-ml-py"),
        # `triton` is imported for its decorators; nothing of it runs.
        [
            "triton",
            "llvmlite",
            "loguru",
            "grpcio",
            "grpcio-health-checking",
            "grpcio-reflection",
            "jsonschema",
            "pycountry",
            "dill",
            "cffi",
        ],
        compiled="rust_tree_core",
    ),
}


def wanted(metadata: str) -> list[str]:
    """Requirements of the wheel that hold without extras."""
    lines = [line for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    return [line.removeprefix("Requires-Dist: ") for line in lines if "extra ==" not in line]


def unpack(wheel: Path, site: Path, compiled: str) -> str:
    """Copies the wheel's files, of compiled ones only those so named; returns its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = [
            name for name in archive.namelist() if not name.endswith(".so") or compiled in name
        ]
        archive.extractall(site, names)
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        return archive.read(metadata).decode()


def without_version(requirements: list[str], name: str) -> list[str]:
    """The requirements, with any version of the package of that name."""
    return [name if NAME.match(line)[0] == name else line for line in requirements]


def alone_of(engine: Engine, requirements: list[str]) -> list[str]:
    """Those of the requirements that come without what they ask for."""
    alone = [line for line in requirements if engine.alone.match(line)]
    return without_version(alone, engine.any_version)


def install_available(command: list[str], requirements: list[str]) -> None:
    """Installs the requirements; where the registry has no such version of one, any that it has.

    The scheduler needs none of them to be recent: a mirror may lag behind a release.
    """
    while True:
        result = run([*command, *requirements], stderr=subprocess.PIPE, text=True)
        sys.stderr.write(result.stderr)
        missing = MISSING.search(result.stderr)
        if result.returncode == 0 or missing is None:
            break
        relaxed = without_version(requirements, missing[1])
        if relaxed == requirements:
            break
        say(f"taking any version of {missing[1]}: there is no {missing[0].split()[-1]}")
        requirements = relaxed
    result.check_returncode()


def say(words: str) -> None:
    """The standard output is for the interpreter's path alone."""
    print(words, file=sys.stderr)


def run(command: list[str], **options: object) -> "subprocess.CompletedProcess[str]":
    """A command that says nothing on the standard output."""
    return subprocess.run(command, stdout=sys.stderr, **options)  # type: ignore[call-overload]


def newest(name: str) -> str:
    """The newest release that the registry has."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", name],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    found = NEWEST.search(listing)
    if found is None:
        raise SystemExit(f"error: the registry names no newest release of {name}.")
    return found[1]


def install(name: str, version: str, folder: Path) -> None:
    """Makes the environment; its last step is the mark that it is whole."""
    engine = ENGINES[name]
    mark = folder / f"{name}.installed"
    if mark.exists():
        return
    say(f"installing {name} {version} in {folder}")
    run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    run([*pip, "download", "--no-deps", "-d", str(folder), f"{name}=={version}"], check=True)
    (wheel,) = folder.glob(f"{name}-{version}*.whl")
    (site,) = (folder / "lib").glob("python*/site-packages")
    asked = wanted(unpack(wheel, site, engine.compiled))
    wheel.unlink()
    rest = [line for line in asked if not engine.left_out.match(line)]
    alone = alone_of(engine, asked)
    run([*pip, "install", "--no-compile", TORCH], check=True)
    install_available([*pip, "install", "--no-compile"], rest)
    install_available(
        [*pip, "install", "--no-compile", "--no-deps"], [*alone, *engine.asked_by_them]
    )
    mark.write_text(version, encoding="utf-8")


def main(name: str, version: str, parent: Path) -> None:
    """Installs a release and prints its interpreter."""
    if version == "newest":
        version = newest(name)
    folder = parent / f"{name}-{version}"
    install(name, version, folder)
    print(folder / "bin" / "python")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
