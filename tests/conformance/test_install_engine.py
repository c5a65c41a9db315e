"""Making an environment for a release of an engine, where the registry lags behind it."""

import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from conformance import install_engine
from conformance.install_engine import (
    ENGINES,
    alone_of,
    install_available,
    main,
    newest,
    unpack,
)


class Registry:
    """Stands in for pip: it has certifi up to version 9 and no package called absent."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def run(self, command: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
        requirements = command[1:]
        self.asked.append(requirements)
        missing = next((one for one in requirements if one in ("certifi>=10", "absent")), None)
        said = f"ERROR: No matching distribution found for {missing}\n" if missing else ""
        listing = "sglang (0.5.23)\nAvailable versions: 0.5.23, 0.5.22\n"
        return subprocess.CompletedProcess(command, 1 if missing else 0, listing, stderr=said)


def test_a_version_that_the_registry_lacks_is_relaxed(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    monkeypatch.setattr(subprocess, "run", registry.run)
    install_available(["pip"], ["numpy<3", "certifi>=10"])
    assert registry.asked == [["numpy<3", "certifi>=10"], ["numpy<3", "certifi"]]


def test_a_package_that_the_registry_lacks_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    monkeypatch.setattr(subprocess, "run", registry.run)
    with pytest.raises(subprocess.CalledProcessError):
        install_available(["pip"], ["absent"])
    assert registry.asked == [["absent"]]


def test_the_newest_release_is_the_one_that_the_registry_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = Registry()
    monkeypatch.setattr(subprocess, "run", registry.run)
    assert newest("sglang") == "0.5.23"
    installed = []
    monkeypatch.setattr(install_engine, "install", lambda *asked: installed.append(asked))
    main("sglang", "newest", tmp_path)
    assert installed == [("sglang", "0.5.23", tmp_path / "sglang-0.5.23")]
    assert capsys.readouterr().out == f"{tmp_path}/sglang-0.5.23/bin/python\n"


def test_of_compiled_files_only_the_radix_tree_is_unpacked(tmp_path: Path) -> None:
    wheel = tmp_path / "sglang.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("sglang-1.dist-info/METADATA", "Requires-Dist: torch==2\n")
        for name in ("a.py", "kernel.so", "rust_tree_core/tree.so"):
            archive.writestr(name, "")
    assert unpack(wheel, tmp_path, ENGINES["sglang"].compiled) == "Requires-Dist: torch==2\n"
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.so")}
    assert found == {"rust_tree_core/tree.so"}


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_what_is_installed_alone_comes_with_nothing_else(engine: install_engine.Engine) -> None:
    names = re.split(r"[()|]+", engine.alone.pattern)[1:-1]
    assert names and all(engine.left_out.match(name) for name in names)


def test_a_grammar_library_takes_the_interface_that_it_needs() -> None:
    """0.24 pins apache-tvm-ffi 0.1.9, which the youngest xgrammar that it allows does not load."""
    asked = ["numpy", "apache-tvm-ffi==0.1.9", "xgrammar<1.0.0,>=0.2.1"]
    assert alone_of(ENGINES["vllm"], asked) == ["apache-tvm-ffi", "xgrammar<1.0.0,>=0.2.1"]
