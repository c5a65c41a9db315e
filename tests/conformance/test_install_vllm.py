"""Making an environment for a release of vLLM, where the registry lags behind it."""

import subprocess
from typing import Any

import pytest
from conformance.install_vllm import install_available


class Registry:
    """Stands in for pip: it has certifi up to version 9 and no package called absent."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def run(self, command: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
        requirements = command[1:]
        self.asked.append(requirements)
        missing = next((one for one in requirements if one in ("certifi>=10", "absent")), None)
        said = f"ERROR: No matching distribution found for {missing}\n" if missing else ""
        return subprocess.CompletedProcess(command, 1 if missing else 0, stderr=said)


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
