"""Writes the lock files beside it: `python requirements/lock.py`, with the interpreter to lock for.

Every package has its version and the SHA-256 of the wheel that pip chooses here. Files name no
index, so that pip takes its own.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PROJECT = FOLDER.parent / "pyproject.toml"
BUILD = ["scikit-build-core>=0.10", "nanobind>=2.4", "cmake>=3.20", "ninja"]


def wanted() -> dict[str, list[str]]:
    """The requirements that each file locks."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    runtime = project["dependencies"]
    extras = project["optional-dependencies"]
    return {
        "runtime.txt": runtime,
        "tests.txt": [*BUILD, *runtime, *extras["dev"]],
        "docs.txt": [*BUILD, *runtime, *extras["docs"]],
    }


def locked(requirements: list[str]) -> str:
    """One line per package, sorted by name; raises CalledProcessError where pip finds none."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as report:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run"]
        command += ["--ignore-installed", "--only-binary", ":all:", "--report", report.name]
        subprocess.run([*command, *requirements], check=True)
        found = json.load(report)["install"]
    lines = []
    for one in found:
        name, version = one["metadata"]["name"].lower(), one["metadata"]["version"]
        digest = one["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name}=={version} --hash=sha256:{digest}\n")
    return "".join(sorted(lines))


if __name__ == "__main__":
    release = ".".join(map(str, sys.version_info[:2]))
    for file, requirements in wanted().items():
        head = f"# For Python {release} on {sys.platform}; requirements/lock.py writes this file.\n"
        (FOLDER / file).write_text(head + locked(requirements), encoding="utf-8")
        print(FOLDER / file)
