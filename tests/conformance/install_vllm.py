"""Makes an environment in which a release of vLLM can schedule, on a machine without a GPU.

`python install_vllm.py VERSION FOLDER`: a virtual environment of this interpreter with what the
release's wheel asks for, but for kernels, and with the wheel's own files but for compiled ones.
Nothing is done where the release is there already.
"""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

TORCH = "torch>=2.13,<2.14"
LEFT_OUT = re.compile(
    r"(torch|nvidia|nvtx|pynv|instanttensor|cuda|cupy|flashinfer|flash|triton|humming|tilelang|quack|ray|deep|tokenspeed"
    r"|fastsafetensors|runai|amd|tpu|xgrammar|compressed|depyf|outlines|lm-format|numba|mistral"
    r"|opencv|apache-tvm|aiconfigurator)",
    re.IGNORECASE,
)
"""Kernels, devices, and what would bring another torch along."""
ALONE = re.compile(
    r"(xgrammar|compressed-tensors|depyf|outlines|lm-format|numba|mistral|opencv|apache-tvm"
    r"|aiconfigurator)",
    re.IGNORECASE,
)
"""Imported by the scheduler's modules; installed without what they ask for in turn."""
NAME = re.compile(r"[A-Za-z0-9._-]+")
MISSING = re.compile(r"No matching distribution found for ([A-Za-z0-9._-]+)\S*")
ASKED_BY_THEM = ["astor", "interegular", "pycountry", "llvmlite", "pandas"]


def wanted(metadata: str) -> list[str]:
    """Requirements of the wheel that hold without extras."""
    lines = [line for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    return [line.removeprefix("Requires-Dist: ") for line in lines if "extra ==" not in line]


def unpack(wheel: Path, site: Path) -> str:
    """Copies the wheel's files but for compiled ones; returns its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith(".so")]
        archive.extractall(site, names)
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        return archive.read(metadata).decode()


def without_version(requirements: list[str], name: str) -> list[str]:
    """The requirements, with any version of the package of that name."""
    return [name if NAME.match(line)[0] == name else line for line in requirements]


def install_available(command: list[str], requirements: list[str]) -> None:
    """Installs the requirements; where the registry has no such version of one, any that it has.

    The scheduler needs none of them to be recent: a mirror may lag behind a release.
    """
    while True:
        result = subprocess.run([*command, *requirements], stderr=subprocess.PIPE, text=True)
        sys.stderr.write(result.stderr)
        missing = MISSING.search(result.stderr)
        if result.returncode == 0 or missing is None:
            break
        relaxed = without_version(requirements, missing[1])
        if relaxed == requirements:
            break
        print(f"taking any version of {missing[1]}: there is no {missing[0].split()[-1]}")
        requirements = relaxed
    result.check_returncode()


def install(version: str, folder: Path) -> None:
    """Makes the environment; its last step is the mark that it is whole."""
    mark = folder / "vllm.installed"
    if mark.exists():
        return
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run(
        [*pip, "download", "--no-deps", "-d", str(folder), f"vllm=={version}"], check=True
    )
    (wheel,) = folder.glob(f"vllm-{version}*.whl")
    (site,) = (folder / "lib").glob("python*/site-packages")
    asked = wanted(unpack(wheel, site))
    wheel.unlink()
    rest = [line for line in asked if not LEFT_OUT.match(line)]
    alone = [line for line in asked if ALONE.match(line)]
    subprocess.run([*pip, "install", "--no-compile", TORCH], check=True)
    install_available([*pip, "install", "--no-compile"], rest)
    install_available([*pip, "install", "--no-compile", "--no-deps"], [*alone, *ASKED_BY_THEM])
    mark.write_text(version, encoding="utf-8")


if __name__ == "__main__":
    install(sys.argv[1], Path(sys.argv[2]))
