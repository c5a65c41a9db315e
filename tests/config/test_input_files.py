"""Every reader opens files in one place: whatever a run opens is in its list, and the list tells a
changed file.
"""

import ast
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from package import PRESETS, package_sources

from llmsim.cli import main
from llmsim.config.files import input_files
from llmsim.config.plugin_calls import in_library

ROOT = Path(__file__).resolve().parents[2]
OF_THE_SYSTEM = ("/proc/", "/dev/", "/sys/", "/usr/share/zoneinfo/")
"""Where libraries read what is no input: Arrow looks up UTC when it reads its first table."""
LOAD = "synthetic:n=6,rate=20,input=fixed:60,output=fixed:6,seed=1"
OPENED: list[str] = []
LISTENING = threading.local()
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not getattr(LISTENING, "on", False):
        return
    path, _, flags = arguments
    if isinstance(path, str | bytes) and not (isinstance(flags, int) and flags & WRITES):
        OPENED.append(os.path.abspath(os.fsdecode(path)))


sys.addaudithook(heard)  # Python cannot remove one; outside of `opened_by` it hears nothing


def opened_by(arguments: list[str], folder: Path) -> tuple[int, set[str]]:
    """Exit code, and the files outside of libraries and of the cache of compiled tables that the
    command read.
    """
    OPENED.clear()
    LISTENING.on = True
    try:
        code = main(arguments)
    finally:
        LISTENING.on = False
    outside = {one for one in OPENED if not in_library(one) and not one.startswith(OF_THE_SYSTEM)}
    outside = {
        one for one in outside if not one.endswith((".pyc", ".zip"))
    }  # Python's own: the sources are listed
    return code, {
        one for one in outside if not one.startswith((str(folder / "cache"), str(folder / "out")))
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("LLMSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def cluster(folder: Path, **instance: Any) -> str:
    document = json.loads(
        (ROOT / "cluster_config" / "h100_llama31_8b.json").read_text(encoding="utf-8")
    )
    document["nodes"][0]["instances"][0] |= instance
    (folder / "cluster.json").write_text(json.dumps(document), encoding="utf-8")
    return "cluster.json"


def model_folder(folder: Path) -> str:
    preset = PRESETS / "models" / "meta-llama" / "Llama-3.1-8B.json"
    config = json.loads(preset.read_text(encoding="utf-8"))
    config["model_type"] = "mine"
    family = json.loads((PRESETS / "families" / "llama.json").read_text(encoding="utf-8"))
    family["model_types"] = ["mine"]
    (folder / "model").mkdir()
    for name, value in (("config.json", config), ("family.json", family)):
        (folder / "model" / name).write_text(json.dumps(value), encoding="utf-8")
    return str(folder / "model")


def sheet(folder: Path) -> str:
    source = PRESETS / "hardware" / "h100_sxm.json"
    (folder / "sheet.json").write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    return str(folder / "sheet.json")


def parquet_trace(folder: Path) -> str:
    text = (ROOT / "tests" / "workload" / "samples" / "sharegpt.json").read_text(encoding="utf-8")
    rows = [row for row in json.loads(text) if isinstance(row, dict)]
    conversations = [row.get("conversations") for row in rows]
    pq.write_table(pa.table({"conversations": conversations}), folder / "trace.parquet")
    return "trace.parquet"


def expert_trace(folder: Path) -> str:
    np.save(folder / "experts.npy", np.ones((48, 128)))
    return "TRACE:experts.npy"


def plugin(folder: Path) -> str:
    (folder / "beside.py").write_text("LIMIT = 3\n", encoding="utf-8")
    (folder / "weights.txt").write_text("1", encoding="utf-8")
    (folder / "my_routers.py").write_text(
        "import beside\n"
        "class First:\n"
        "    def __init__(self): self.weight = int(open('weights.txt').read())\n"
        "    def route(self, request, groups): return groups[0].index\n",
        encoding="utf-8",
    )
    return "my_routers:First"


def words_of(kind: str, folder: Path) -> tuple[list[str], list[str]]:
    """The command line of one kind of run, and the names of files that must be in its list."""
    given: dict[str, str] = {
        "--cluster-config": cluster(folder),
        "--dataset": LOAD,
        "--cost-source": "roofline",
    }
    needed: list[str] = []
    if kind == "model, family and data sheet":
        given["--cluster-config"] = cluster(
            folder, model_name=model_folder(folder), hardware=sheet(folder)
        )
        needed = ["cluster.json", "model/config.json", "model/family.json", "sheet.json"]
    elif kind == "blackbox":
        (folder / "bb.json").write_text('{"beta": [5000, 20, 10]}', encoding="utf-8")
        given["--cost-source"], needed = "blackbox:bb.json", ["bb.json"]
    elif kind == "parquet trace":
        given["--dataset"] = f"trace:{parquet_trace(folder)}"
        needed = ["trace.parquet"]
    elif kind == "expert trace":
        given["--cluster-config"] = str(ROOT / "cluster_config" / "h100_qwen3_30b_a3b.json")
        given["--expert-routing-policy"], needed = expert_trace(folder), ["experts.npy"]
    elif kind == "plug-in":
        given["--request-routing-policy"] = plugin(folder)
        needed = ["my_routers.py", "beside.py", "weights.txt"]
    elif kind == "cost table":
        rows = "model,hardware,precision,tensor_parallel,operator,tokens,time_us\n"
        (folder / "t.csv").write_text(rows, encoding="utf-8")
        given["--cost-table"], needed = "t.csv", ["t.csv"]
    elif kind == "silicon":
        given["--cost-source"] = "auto"
    elif kind == "calibration":
        (folder / "k.json").write_text("{}", encoding="utf-8")
        given["--calibration"], needed = "k.json", ["k.json"]
    elif kind.endswith(".json"):
        given["--cluster-config"] = str(ROOT / "cluster_config" / kind)
    else:
        given["--dataset"] = str(ROOT / "tests" / "workload" / "samples" / kind)
        needed = [given["--dataset"]]
    return [f"{name}={value}" for name, value in given.items()], needed


SAMPLES = sorted(
    path.name
    for path in (ROOT / "tests" / "workload" / "samples").iterdir()
    if path.suffix != ".json"
)
EXAMPLES = (
    "pd_pim_instance.json",
    "cpu_amx_instance.json",
    "l40s_llama31_8b_tp4_pcie.json",
    "single_node_cxl_instance.json",
    "rtxpro6000_llama31_8b.json",
    "single_node_power_instance.json",
    "h100_qwen3_30b_a3b_attn2x4_ep8.json",
)
KINDS = (
    "model, family and data sheet",
    "blackbox",
    "parquet trace",
    "expert trace",
    "plug-in",
    "cost table",
    "silicon",
    "calibration",
)


@pytest.mark.parametrize("kind", [*KINDS, *EXAMPLES, *SAMPLES])
def test_what_a_run_opens_is_in_its_list(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the run ends in an error: a file that is wrong is what the verdict rests on."""
    words, needed = words_of(kind, folder)
    code, opened = opened_by(["run", *words, "--json", "--input-files=out.json"], folder)
    report = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    assert report["ended"] == {0: "answered", 2: "bad_input", 3: "does_not_fit"}[code], (
        capsys.readouterr().err
    )
    listed = {one["path"] for one in report["files"]}
    assert opened <= listed
    assert {str(folder / name) for name in needed} <= listed
    assert all(one["sha256"] for one in report["files"] if one["kind"] == "file")
    if kind in (
        "model, family and data sheet",
        "blackbox",
        "plug-in",
        "silicon",
        "expert trace",
        "parquet trace",
    ):
        assert code == 0
    if kind == "silicon":
        assert any("aiconfigurator_core" in path for path in listed)


def test_kept_tables_do_not_hide_what_they_were_made_from(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, _ = words_of("silicon", folder)
    lists = []
    for _ in range(2):  # the second finds the compiled tables of the first
        assert main(["run", *words, "--json", "--input-files=out.json"]) == 0
        lists.append((folder / "out.json").read_bytes())
    assert lists[0] == lists[1]
    capsys.readouterr()


OPENERS = {
    "open",
    "read_text",
    "read_bytes",
    "ParquetFile",
    "read_schema",
    "memory_map",
    "read_table",
    "OSFile",
}
OWN_FILES = {
    "cli/__init__.py",  # /dev/null
    "config/files/code_identity.py",  # the package
    "config/files/input_files.py",
    "emulation/in_client/pools.py",  # what the kernel says of a thread
    "emulation/in_engine/clock.py",  # makes the page of the clock
    "emulation/processes.py",  # what the kernel says of processes
    "emulation/timekeeping/asleep.py",  # what the kernel says of threads
    "emulation/timekeeping/thread_waits.py",  # makes the table of a client's waits
    "emulation/servers/server.py",  # what the server has said
    "endpoint/recorder.py",  # writes
    "costs/cache.py",  # made of what is recorded, and checked by a checksum
    "export/chakra.py",  # writes
    "export/files.py",  # writes
    "export/run_dir.py",  # hashes what was read
    "installation/examples.py",  # copies what is bundled; no run reads it there
    "installation/public_data.py",  # fetches and checks; no run reads it there
    "native_build.py",  # reads sources for their hash
    "rounds/outside.py",  # what it has kept of steps, under a hash of all that they depend on
    "search/journal.py",
    "sizing/frontier.py",  # a journal of its own
    "search/trials.py",
    "workload/open_trace.py",  # the copy of a pipe
}
LIBRARIES = {"ParquetFile", "read_schema", "memory_map", "read_table", "OSFile"}
"""They open a path in C++, of which Python's audit hook hears nothing."""


def calls_in(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(object or "", function) of every call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
                yield node.func.value.id, node.func.attr
            elif isinstance(node.func, ast.Attribute):
                yield "?", node.func.attr
            elif isinstance(node.func, ast.Name):
                yield "", node.func.id


def test_no_reader_opens_a_file_by_itself() -> None:
    """Also readers that no run above calls; a library that opens a path is called where the path is
    noted.
    """
    wrong = []
    for path in sorted(package_sources().rglob("*.py")):
        name = path.relative_to(package_sources()).as_posix()
        if name in OWN_FILES or name.startswith(
            "profiler/"
        ):  # a program of its own, whose runs have no manifest
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        noting = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        noted = {
            call
            for node in noting
            if ("input_files", "note") in set(calls_in(node))
            for call in calls_in(node)
        }
        for owner, function in calls_in(tree):
            by_itself = (
                function in OPENERS
                and owner not in ("input_files", "os")
                and (owner, function) not in noted
            )
            of_ours = (
                function in ("read_text", "read_table") and owner == ""
            )  # llmsim.config.cluster_file.loading, costs.sources.csv_tables
            inside = (owner, function) == ("ipc", "open") or function == "open_file"
            if by_itself and not (of_ours or inside):
                wrong.append(f"{name}: {owner}.{function}")
    assert not wrong


def test_a_changed_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("1", encoding="utf-8")
    with input_files.recorded() as record:
        assert input_files.read_bytes(path) == b"1"
        assert not input_files.is_file(tmp_path / "b.json")
        (first, absent) = record.listed()
        assert (first.kind, absent.kind) == ("file", "absent") and first.bytes == 1
        path.write_text("23", encoding="utf-8")
        assert record.listed()[0].sha256 is None
    assert input_files.fingerprint(first.path) != first
    (tmp_path / "b.json").write_text("", encoding="utf-8")
    assert input_files.fingerprint(absent.path) != absent


def test_threads_have_records_of_their_own(tmp_path: Path) -> None:
    found: dict[int, list[str]] = {}

    def read(number: int) -> None:
        path = tmp_path / f"{number}"
        path.write_text("", encoding="utf-8")
        with input_files.recorded() as record:
            input_files.read_bytes(path)
            found[number] = [one.path for one in record.listed()]

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [str(tmp_path / f"{number}")] for number in range(8)}
