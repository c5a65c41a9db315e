"""Reads every export of a run with the parser of the tool whose format it is.

usage: python evaluation/readers.py [--tools vllm,aiperf,guidellm,prometheus] [--envs build/readers]

Each tool has an environment of its own below `--envs`, which is made where it is absent (this needs
a package registry). Of vLLM the wheel's `benchmarks` alone are unpacked. A row compares what the
tool reads with the run's summary; exit code 1 where one differs.
"""

import json
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from llmsim.cli import main as llmsim
from llmsim.cli.arguments import OneSentenceParser

ROOT = Path(__file__).resolve().parents[1]
CLUSTER = ROOT / "cluster_config" / "h100_multi_instance.json"
LOAD = "synthetic:n=200,rate=30,input=lognormal:300,output=lognormal:40,seed=3"
CLOSE = 1e-6
"""Relative difference up to which figures are equal: some formats hold float seconds since 1970."""

VLLM = """
import json, re, sys, types
sys.path.insert(0, sys.argv[2])
stub = types.ModuleType("vllm.utils.import_utils")
stub.PlaceholderModule = lambda name: types.SimpleNamespace(placeholder_attr=lambda attr: None)
sys.modules["vllm.utils"] = types.ModuleType("vllm.utils")
sys.modules["vllm.utils.import_utils"] = stub
from vllm.benchmarks.plot import construct_timeline_data
result = json.load(open(sys.argv[1]))
rows = [
    {"start_time": start, "ttft": ttft, "itl": itl, "latency": ttft + sum(itl),
     "prompt_len": prompt, "output_tokens": output}
    for start, ttft, itl, prompt, output in zip(
        *(result[name] for name in ("start_times", "ttfts", "itls", "input_lens", "output_lens")),
        strict=True)
]
line = construct_timeline_data(rows, [0.025, 0.05], ["fast", "middle", "slow"])
first = [one for one in line if one["type"] == "TTFT"]
source = open(f"{sys.argv[2]}/vllm/benchmarks/serve.py").read()
block = source[source.index('            "duration": benchmark_duration,'):]
names = re.findall(r'^            "(\\w+)":', block[:block.index("}")], re.MULTILINE)
print(json.dumps({
    "names of vLLM that are missing": sorted(set(names) - set(result)),
    "completed": len(first),
    "total_input_tokens": sum(one["prompt_tokens"] for one in first),
    "total_output_tokens": len(line),
    "mean_ttft_ms": sum(row["ttft"] for row in rows) / len(rows) * 1e3,
    "mean_e2el_ms": sum(row["latency"] for row in rows) / len(rows) * 1e3,
    "p99_tpot_ms": result["p99_tpot_ms"],
}))
"""
AIPERF = """
import json, sys
from aiperf.common.models.export_models import JsonExportData
from aiperf.common.models.record_models import MetricRecordInfo
folder = sys.argv[1]
whole = JsonExportData.model_validate_json(open(f"{folder}/profile_export_aiperf.json").read())
lines = open(f"{folder}/profile_export.jsonl").read().splitlines()
records = [MetricRecordInfo.model_validate_json(line) for line in lines]
def mean(name):
    values = [one.metrics[name].value for one in records if name in one.metrics]
    return sum(values) / len(values)
print(json.dumps({
    "names of aiperf that are missing": sorted(
        {"schema_version", "benchmark_id", "run_info", "start_time", "end_time"}
        - set(whole.model_dump(exclude_none=True))),
    "schema_version is aiperf's": whole.schema_version == JsonExportData.SCHEMA_VERSION,
    "completed": len(records),
    "mean_ttft_ms": whole.time_to_first_token.avg,
    "p99_ttft_ms": whole.time_to_first_token.p99,
    "mean_tpot_ms": mean("inter_token_latency"),
    "p99_e2el_ms": whole.request_latency.p99,
    "output_throughput": whole.output_token_throughput.avg,
    "request_throughput": whole.request_throughput.avg,
}))
"""
GUIDELLM = """
import importlib.machinery, importlib.util, json, sys, types
class Stub(types.ModuleType):  # guidellm imports torch, 3 GB, for its data loaders alone
    __version__ = "0"
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__class_getitem__": classmethod(lambda cls, item: cls)})
if importlib.util.find_spec("torch") is None:
    data = "torch.utils.data"
    for name in ("torch", "torch.utils", data, data + ".dataloader", data + ".dataset"):
        sys.modules[name] = Stub(name)
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
from guidellm.benchmark import GenerativeBenchmarksReport
(bench,) = GenerativeBenchmarksReport.load_file(sys.argv[1]).benchmarks
done = bench.requests.successful
def ttft(one):
    return one.time_to_first_token_ms
print(json.dumps({
    "completed": len(done),
    "total_output_tokens": sum(one.output_tokens for one in done),
    "mean_ttft_ms": sum(map(ttft, done)) / len(done),
    "p99_ttft_ms": bench.metrics.time_to_first_token_ms.successful.percentiles.p99,
    "mean_tpot_ms": bench.metrics.inter_token_latency_ms.successful.mean,
    "mean_e2el_ms": bench.metrics.request_latency.successful.mean * 1e3,
    "output_throughput": bench.metrics.output_tokens_per_second.successful.mean,
    "duration": bench.duration,
}))
"""
PROMETHEUS = """
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
families = text_string_to_metric_families(open(sys.argv[1]).read())
last = {}
for family in families:
    for one in family.samples:
        last[one.name, tuple(sorted(one.labels.items()))] = one.value
def total(name, **labels):
    return sum(value for (found, tags), value in last.items()
               if found == name and labels.items() <= dict(tags).items())
name = "vllm:time_to_first_token_seconds"
print(json.dumps({
    "completed": total(f"{name}_bucket", le="+Inf"),
    "total_input_tokens": total("vllm:prompt_tokens_total") or total("vllm:prompt_tokens"),
    "total_output_tokens": total("vllm:generation_tokens_total") or total("vllm:generation_tokens"),
    "mean_ttft_ms": total(f"{name}_sum") / total(f"{name}_count") * 1e3,
}))
"""


@dataclass(frozen=True)
class Tool:
    """A tool, the format that it reads, and how its parser is asked."""

    package: str
    form: str
    file: str
    program: str
    """Prints a JSON object: figures of the summary by name, facts, and lists of what is missing."""
    unpacked: str = ""
    """A folder of the wheel that is enough; the package is not installed then."""
    without: str = ""
    """A dependency that its parser does not need, and that is not installed."""
    also: tuple[str, ...] = ()
    """Packages that it imports and does not name."""


TOOLS = {
    "vllm": Tool("vllm", "vllm-bench", "bench.json", VLLM, "vllm/benchmarks/"),
    "aiperf": Tool("aiperf", "aiperf", "aiperf", AIPERF),
    "guidellm": Tool(
        "guidellm", "guidellm", "benchmarks.json", GUIDELLM, without="torch", also=("jinja2",)
    ),
    "prometheus": Tool("prometheus-client", "openmetrics", "metrics.txt", PROMETHEUS),
}


def environment(tool: Tool, folder: Path) -> Path:
    """The Python of the tool's environment, made where it is absent."""
    python = folder / "bin" / "python"
    if not (folder / "made").exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
        if tool.unpacked:
            words = [
                "download",
                "--quiet",
                "--no-deps",
                "--only-binary",
                ":all:",
                "-d",
                str(folder),
            ]
            subprocess.run([*pip, *words, tool.package], check=True)
            (wheel,) = folder.glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                names = [one for one in archive.namelist() if one.startswith(tool.unpacked)]
                archive.extractall(folder / "unpacked", names)
            (folder / "made").write_text(wheel.name.split("-")[1])
            wheel.unlink()
        else:
            install = [*pip, "install", "--quiet"]
            alone = ["--no-deps"] if tool.without else []
            subprocess.run([*install, *alone, tool.package], check=True)
            others = [*(needs(python, tool) if tool.without else ()), *tool.also]
            if others:
                subprocess.run([*install, *others], check=True)
            shown = subprocess.run(
                [*pip, "show", tool.package], check=True, capture_output=True, text=True
            )
            version = next(one for one in shown.stdout.splitlines() if one.startswith("Version:"))
            (folder / "made").write_text(version.split()[1])
    return python


def needs(python: Path, tool: Tool) -> list[str]:
    """What an installed tool requires, without the dependency that its parser does not need."""
    program = f"import importlib.metadata as it; print(*it.requires({tool.package!r}), sep='|')"
    words = [str(python), "-c", program]
    listed = subprocess.run(words, check=True, capture_output=True, text=True)
    required = listed.stdout.strip().split("|")
    needed = [one for one in required if "extra ==" not in one]
    return [one for one in needed if not one.startswith(tool.without)]


def read(tool: Tool, folder: Path, export: Path) -> dict[str, object]:
    """What the tool reads of an export."""
    command = [str(environment(tool, folder)), "-c", tool.program, str(export)]
    done = subprocess.run(
        [*command, str(folder / "unpacked")], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def problems(found: dict[str, object], summary: dict[str, object]) -> list[str]:
    """A sentence for each figure that differs, for each fact that is not, and what is missing."""
    said = []
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            if value is False or (value and value is not True):
                said.append(f"{name}: {value}")
            continue
        expected = summary[name]
        assert isinstance(expected, int | float)
        if abs(value - expected) > CLOSE * abs(expected):
            said.append(f"{name} is {value}, the run has {expected}")
    return said


def exported(folder: Path, tools: list[str]) -> dict[str, object]:
    """Runs, exports for the tools, and gives the summary."""

    def command(*words: str) -> None:
        if code := llmsim(list(words)):
            raise SystemExit(code)

    arguments = ["--cluster-config", str(CLUSTER), "--dataset", LOAD, "--quiet"]
    command("run", *arguments, "--cost-source", "roofline", "--run-dir", str(folder / "run"))
    for tool in (TOOLS[name] for name in tools):
        command("export", str(folder / "run"), "--format", tool.form, "-o", str(folder / tool.file))
    summary: dict[str, object] = json.loads((folder / "run" / "summary.json").read_text())
    return summary


def main() -> int:
    """Prints a line for each tool."""
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("--tools", default=",".join(TOOLS), help="names of tools")
    parser.add_argument("--envs", type=Path, default=ROOT / "build" / "readers")
    given = parser.parse_args()
    tools = given.tools.split(",")
    wrong = False
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        summary = exported(folder, tools)
        for name in tools:
            tool, place = TOOLS[name], given.envs / name
            found = read(tool, place, folder / tool.file)
            said = problems(found, summary)
            version = (place / "made").read_text().strip()
            verdict = "; ".join(said) or "reads the run's figures"
            print(f"{tool.package} {version}, {len(found)} checks: {verdict}", flush=True)
            wrong = wrong or bool(said)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
