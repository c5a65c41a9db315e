"""Sections of the accuracy page about counts of KV blocks, and about the paper's figures of one
server.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import accuracy_static
from accuracy_data import needed
from figures import figure_5, figure_6, figure_7
from figures.report import FigureReport, table
from figures.runs import FAILED, Workspace
from msgspec.structs import replace

from llmsim.config.engine.profile import load_profile
from llmsim.config.errors import InputError
from llmsim.model import Layout, load_model, memory_ledger, resolve_dtypes
from llmsim.model.memory.ledger import MemoryLedger

GIB = 2**30
A6000_BYTES = round(47.53 * GIB)
"""What PyTorch reports of an RTX A6000 (github.com/allenai/open-instruct, issue 163)."""


@dataclass(frozen=True)
class Counted:
    """A server that said how many blocks of 16 tokens it had; Llama-3.1-8B in bf16, utilisation
    0.9.
    """

    label: str
    device_bytes: int
    tp: int
    max_num_seqs: int
    eager: bool
    num_sms: int
    blocks: int
    profile: str = "vllm-0.19"

    def predicted(self) -> MemoryLedger:
        """By the engine profile of its version; the servers were installed from wheels."""
        model, profile = load_model("meta-llama/Llama-3.1-8B"), load_profile(self.profile)
        sizes = () if self.eager else profile.cuda_graphs.sizes(self.max_num_seqs, 2048)
        return memory_ledger(
            model,
            Layout(self.tp, 1),
            resolve_dtypes(model, None, "auto"),
            device_bytes=self.device_bytes,
            utilization=0.9,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=2048,
            block_size=16,
            rules=replace(profile.memory, native_sampler=True),
            cuda_graph_sizes=sizes,
            num_sms=self.num_sms,
            cudagraph_mode="NONE" if self.eager else "FULL_AND_PIECEWISE",
        )


SERVERS = (
    Counted("24 GB card (25,250,627,584 B), vLLM 0.19.0", 25_250_627_584, 1, 256, False, 128, 2588),
    Counted(
        "RTX A6000, vLLM 0.11.1, eager", A6000_BYTES, 1, 256, True, 84, 216_720 // 16, "vllm-0.11"
    ),
    Counted(
        "RTX A6000, TP2, vLLM 0.11.1, eager",
        A6000_BYTES,
        2,
        256,
        True,
        84,
        554_704 // 16,
        "vllm-0.11",
    ),
    Counted(
        "RTX A6000, 128 sequences, vLLM 0.13.0rc2, eager",
        A6000_BYTES,
        1,
        128,
        True,
        84,
        221_504 // 16,
        "vllm-0.13",
    ),
)


def kv_blocks(folder: Path) -> str:
    """The prediction for each server whose real count is known."""
    del folder
    lines = ["| server | blocks | predicted | error, % |", "| --- | ---: | ---: | ---: |"]
    ledgers = [server.predicted() for server in SERVERS]
    for server, ledger in zip(SERVERS, ledgers, strict=True):
        error = 100 * (ledger.num_blocks / server.blocks - 1)
        lines.append(f"| {server.label} | {server.blocks} | {ledger.num_blocks} | {error:+.2f} |")
    rows = "\n".join(f"| {label} | {size:,} |" for label, size in ledgers[0].lines)
    return "\n".join(
        [
            accuracy_static.KV_BLOCKS,
            *lines,
            "",
            accuracy_static.KV_BLOCKS_NOTES,
            "",
            "| bytes | |",
            "| --- | ---: |",
            rows,
        ]
    )


def figures(folder: Path) -> str:
    """Throughput, power, memory and hits over time of the paper's A6000 server, as the figure
    scripts compare them.
    """
    artifact = needed(folder, "artifact")
    needed(artifact, "perf_models/A6000")
    parts = [accuracy_static.FIGURES]
    with tempfile.TemporaryDirectory() as scratch:
        for number, module in ((5, figure_5), (6, figure_6), (7, figure_7)):
            work = Workspace(Path(scratch) / f"figure_{number}", artifact.resolve())
            work.folder.mkdir(parents=True)
            report = module.build(work)
            report.comparisons = [
                one for one in report.comparisons if not one.what.startswith("H100")
            ]
            report.remarks = [one for one in report.remarks if not one.startswith("H100")]
            _check_that_all_ran(report)
            parts.append("\n".join(table(report)).replace("## Figure", "### Figure").strip())
    return "\n\n".join(parts)


def _check_that_all_ran(report: FigureReport) -> None:
    """Raises InputError for a run that failed: the page would lack its rows for good."""
    failed = [remark for remark in report.remarks if FAILED in remark]
    if failed:
        raise InputError(
            f"figure {report.number}: {failed[0]}; the page is written when all of its runs end, "
            "so mend this one"
        )
