"""The stub of the native module names what the module has (`make stubs`)."""

import ast
from pathlib import Path
from types import ModuleType

import pytest
from package import PACKAGE

from llmsim import _native

STUBS = PACKAGE


def declared(path: Path) -> set[str]:
    """Names at the top of a stub, and those of its classes as `Class.name`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found |= {node.name} | {
                f"{node.name}.{name}" for inner in node.body for name in names_of(inner)
            }
        else:
            found |= names_of(node)
    return found


def names_of(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef):
        return {node.name}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return set()


def bound(module: ModuleType) -> set[str]:
    """Public names of the module, and those of its classes."""
    found = set()
    for name, value in vars(module).items():
        if name.startswith("_") or isinstance(value, ModuleType):
            continue
        found.add(name)
        if isinstance(value, type):
            found |= {
                f"{name}.{inner}" for inner in vars(value) if not inner.startswith(("_", "@"))
            }
    return found


@pytest.mark.parametrize("name", ["_native", "_native_engine"])
def test_the_stub_names_what_the_module_has(name: str) -> None:
    module = _native if name == "_native" else _native.engine
    stub = {
        found
        for found in declared(STUBS / f"{name}.pyi")
        if not found.rpartition(".")[2].startswith("_")
    }
    assert stub - {"engine"} == bound(module), "run `make stubs`"
