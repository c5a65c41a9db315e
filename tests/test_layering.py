"""Imports point one way: walks the package's import graph, and the includes of the native code."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest
from package import package_sources

ROOT = Path(__file__).resolve().parents[1]
LAYERS = [
    {"cli", "profiler"},
    {"installation", "sizing", "search", "study", "endpoint", "emulation"},
    {"api"},
    {"rounds"},
    {"simulation"},
    {"validation"},
    {"lowering", "scheduling", "routing", "results", "export"},
    {"model", "costs", "kvcache", "power", "workload"},
    {"compat"},
    {"config"},
    {"core", "exact", "loading", "native_build", "plurals"},
    {"columns"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imported(path: Path) -> set[str]:
    """First-level parts of the package that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        found |= {name.split(".")[1] for name in names if name.startswith("llmsim.")}
    return found


def test_imports_point_down() -> None:
    checked = 0
    for path in sorted(package_sources().rglob("*.py")):
        part = path.relative_to(package_sources()).parts[0].removesuffix(".py")
        if part not in LEVEL:
            continue
        for other in imported(path) & LEVEL.keys() - {part}:
            assert LEVEL[other] >= LEVEL[part], (
                f"{path.relative_to(ROOT)} imports llmsim.{other}, which is above it"
            )
            checked += 1
    assert checked > 50


def test_every_part_of_the_package_has_a_layer() -> None:
    parts = {
        p.name.removesuffix(".py")
        for p in package_sources().iterdir()
        if p.suffix == ".py" or p.is_dir()
    }
    assert parts - LEVEL.keys() <= {"__init__", "__main__", "__pycache__", "native", "presets"}


@pytest.mark.parametrize("folder", ["bench", "evaluation", "profiler"])
def test_programs_beside_the_package_import_what_it_has(folder: str) -> None:
    """No test runs all of them, so a function that has moved would be missed by whoever runs one
    next.
    """
    missing = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "llmsim":
                module = importlib.import_module(str(node.module))
                for name in (alias.name for alias in node.names):
                    is_module = hasattr(module, "__path__") and importlib.util.find_spec(
                        f"{node.module}.{name}"
                    )
                    if not hasattr(module, name) and not is_module:
                        missing.append(f"{path.relative_to(ROOT)}: {node.module}.{name}")
    assert not missing


INCLUDE = re.compile(r'#include "([^"]+)"')
ORDERS = {
    "llmsim/config": ["files", "engine", "cluster_file", "machine", "topology"],
    "llmsim/model": ["parallel", "operators", "families", "memory"],
    "llmsim/costs": ["nccl", "experts", "sources"],
    "llmsim/costs/sources": ["bundle", "silicon", "external"],
    "llmsim/lowering": [
        "network",
        "afd",
        "offload",
        "kv",
        "adjust",
        "energy",
        "host",
        "speculation",
        "operators",
        "switches",
    ],
    "llmsim/results": ["requests", "devices", "printed"],
    "llmsim/api": ["options", "verdicts", "checked", "pictures", "preparation", "why"],
    "llmsim/sizing": ["workers", "search", "emit"],
    "llmsim/emulation": ["in_engine", "in_client", "servers", "engines", "timekeeping"],
    "llmsim/scheduling/conformance": ["vllm", "sglang"],
    "llmsim/cli": ["run", "commands", "first_steps"],
    "llmsim/export": ["timeline", "step_graph", "benchmark_formats", "html_report"],
    "llmsim/validation": ["logs", "compare", "fit", "report"],
    "llmsim/profiler": [
        "bundle",
        "device",
        "kernels",
        "attention",
        "moe",
        "state_space",
        "rank",
        "serve",
        "importing",
        "cli",
    ],
    "llmsim/workload": ["formats", "synthetic", "generators"],
    "llmsim/workload/formats": ["chat", "cloud", "bench", "own"],
    "llmsim/native": [
        "base",
        "events",
        "request",
        "network",
        "kv",
        "program",
        "offload",
        "step",
        "afd",
        "scheduler",
        "group",
        "router",
        "frontend",
        "kv_transfer",
        "loop",
        "results",
        "bindings",
        "client_waits",
    ],
    "astra-sim": ["model", "engine", "formats", "strict", "cli", "python"],
    "astra-sim/model": ["base", "topology", "collective", "graph", "memory"],
    "astra-sim/engine": [
        "events",
        "network",
        "memory",
        "run",
        "collectives",
        "loop",
        "isolated",
        "folded",
    ],
    "astra-sim/formats": ["text", "chakra", "config", "traces"],
    "astra-sim/formats/chakra": ["protobuf", "json"],
    "astra-sim/strict": ["base", "network", "collectives", "loop"],
    "astra-sim/cli": ["handover", "run", "upstream", "tools"],
}
"""Folder -> its sub-folders; each may use those before it, and none of those behind it."""
APART = {"llmsim/costs/sources"}
"""Folders whose sub-folders do not use each other at all."""


def used_paths(path: Path) -> set[str]:
    """Sources that a source includes or imports, relative to the checkout; without those for type
    checkers alone.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        base = "llmsim/native" if path.is_relative_to(ROOT / "llmsim" / "native") else "astra-sim"
        roots = [base, "astra-sim"]
        return {
            f"{root}/{name}"
            for name in INCLUDE.findall(text)
            for root in roots
            if (ROOT / root / name).exists()
        }
    tree = ast.parse(text)
    typed = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    ]
    skipped = {id(inner) for node in typed for inner in ast.walk(node)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in skipped:
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            found |= {name.replace(".", "/") + ".py" for name in modules}
    return {name for name in found if (ROOT / name).exists()}


def below(folder: str, path: str) -> str | None:
    """The sub-folder of `folder` that holds the path."""
    rest = path.removeprefix(f"{folder}/")
    return rest.split("/")[0] if rest != path and "/" in rest else None


@pytest.mark.parametrize("folder", ORDERS)
def test_subfolders_use_those_before_them(folder: str) -> None:
    order = ORDERS[folder]
    wrong = []
    for path in sorted(package_sources(folder).rglob("*")):
        own = below(folder, str(path.relative_to(ROOT)))
        if path.suffix not in (".py", ".h", ".cpp") or own not in order:
            continue
        for used in used_paths(path):
            other = below(folder, used)
            if other not in order or other == own:
                continue
            if folder in APART or order.index(other) > order.index(own):
                wrong.append(f"{path.relative_to(ROOT)} uses {used}")
    assert not wrong


def test_every_subfolder_has_a_place() -> None:
    for folder, order in ORDERS.items():
        names = {path.name for path in package_sources(folder).iterdir() if path.is_dir()}
        names -= {"__pycache__"}
        assert names - set(order) <= {"bench", "tests", "build"}, folder
        assert set(order) <= names, folder


def test_the_engine_knows_nothing_of_serving_and_its_executors_nothing_of_each_other() -> None:
    for path in sorted((ROOT / "astra-sim").rglob("*.[ch]*")):
        if path.suffix not in (".h", ".cpp"):
            continue
        part = path.relative_to(ROOT / "astra-sim").parts[0]
        for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
            assert "native" not in name and not name.startswith("llmsim"), f"{path} includes {name}"
            if part in ("strict", "engine"):
                other = {"strict": "engine/", "engine": "strict/"}[part]
                assert not name.startswith(other), f"{path} includes {name}"


def test_policies_do_not_read_the_oracle() -> None:
    """Invariant 8: only the stop rule, the KV-capacity guard, SGLang's admission
    (max_new_tokens), TensorRT-LLM's (max_tokens) and srpt, which is told, ask.
    """
    allowed = {"sequence_table.h", "vllm_v1.cpp", "batch_scheduler.cpp", "group.cpp"}
    allowed |= {"outline.cpp", "sglang.cpp", "srpt.cpp", "tensorrt_llm.cpp"}
    reads = re.compile(r"(?<!set_)max_tokens\(")
    for path in sorted(package_sources("llmsim/native").rglob("*")):
        if path.suffix in (".h", ".cpp") and reads.search(path.read_text(encoding="utf-8")):
            assert path.name in allowed, f"{path.name} reads the output length"
