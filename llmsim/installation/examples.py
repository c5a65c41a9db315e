"""The bundled examples: cluster files and traces that come with every installation."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llmsim.config.errors import InputError, nearest

PACKAGE = Path(__file__).resolve().parents[1]
CLUSTERS, DATASETS = "cluster_config", "dataset"
TRACE = "dataset/example_10.jsonl"


@dataclass(frozen=True)
class Example:
    """One cluster file with the options that show it; `cost_source` "auto" where measured kernels
    exist.
    """

    file: str
    what: str
    options: tuple[str, ...] = ("--cost-source", "roofline")
    dataset: str = TRACE

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words of `llmsim run` in a folder that holds the examples."""
        return (
            "--cluster-config",
            f"{CLUSTERS}/{self.file}.json",
            "--dataset",
            self.dataset,
            *self.options,
        )


ROOFLINE = ("--cost-source", "roofline")
SHARED = ("--enable-prefix-sharing", "--prefix-storage")
HICACHE = (
    *("--scheduler", "sglang", "--enable-hierarchical-cache", "--hicache-ratio", "0.5"),
    *("--hicache-storage-backend", "file"),
)
MIXED = (
    "synthetic:n=10,rate=5,input=33,output=77,seed=1,model=meta-llama/Llama-3.1-8B|Qwen/Qwen3-8B"
)
EXAMPLES = (
    Example("single_node_single_instance", "one A6000, Llama-3.1-8B"),
    Example(
        "single_node_single_instance_H100",
        "four H100 as one tensor-parallel instance, Llama-3.1-70B",
    ),
    Example("single_node_multi_instance", "two A6000, each with Llama-3.1-8B"),
    Example("dual_node_multi_instance", "two nodes of two A6000"),
    Example("single_node_pd_instance", "one A6000 prefills, one decodes"),
    Example("single_node_moe_single_instance", "one A6000, Phi-mini-MoE"),
    Example("single_node_moe_multi_instance", "two A6000, each with Phi-mini-MoE"),
    Example("single_node_moe_pd_instance", "Phi-mini-MoE, one A6000 prefills, one decodes"),
    Example(
        "single_node_moe_dp_ep_instance",
        "Qwen3-30B-A3B: two data-parallel ranks of two H100, experts over all",
    ),
    Example(
        "dual_node_moe_dp_ep_instance",
        "Qwen3-30B-A3B: two data-parallel ranks of two H100, one rank per node",
    ),
    Example(
        "single_node_tp_pp_instance", "Llama-3.1-70B on H100, two pipeline stages of two devices"
    ),
    Example(
        "l40s_llama31_8b_tp4_pcie",
        "Llama-3.1-8B on four of eight L40S, on the routes of a PCIe server",
    ),
    Example("single_node_memory_instance", "every placement key, all weights on the device"),
    Example("single_node_cxl_instance", "one A6000 with weights on four CXL devices"),
    Example(
        "single_node_moe_offload_instance",
        "Phi-mini-MoE with its experts in host memory, a quarter cached",
    ),
    Example(
        "single_node_power_instance", "one A6000, Llama-3.1-8B, with the power of every component"
    ),
    Example("single_node_pim_instance", "decodes attend in 256 channels of HBM2"),
    Example(
        "single_node_pim_instance",
        "decodes attend in 256 channels of HBM2, with sub-batches",
        (*ROOFLINE, "--enable-attn-offloading", "--enable-sub-batch-interleaving"),
    ),
    Example("cxl_two_groups", "two A6000 whose weights are on one CXL device"),
    Example("pd_pim_instance", "one A6000 prefills, the other decodes with attention in memory"),
    Example("cpu_attention_instance", "one A6000 whose attention runs on two Xeon sockets"),
    Example(
        "heterogeneous_instance", "an H100 and an A6000 serve one model, with prices", (*ROOFLINE,)
    ),
    Example("tpu_v6e_slice", "a slice of eight TPU v6e, Llama-3.1-70B"),
    Example("cpu_amx_instance", "a two-socket CPU node with AMX, Llama-3.1-8B in tensor parallel"),
    Example("h100_llama31_8b", "one H100, Llama-3.1-8B"),
    Example("rtxpro6000_llama31_8b", "one RTX PRO 6000, Llama-3.1-8B"),
    Example("h100_llama31_70b_tp4", "four H100 as one tensor-parallel instance, Llama-3.1-70B"),
    Example("h100_llama31_70b_tp4_pp2", "eight H100, two pipeline stages of four, Llama-3.1-70B"),
    Example("h100_qwen3_30b_a3b", "one H100, Qwen3-30B-A3B"),
    Example(
        "rtxpro6000_qwen3_30b_a3b_dp2_ep2",
        "two RTX PRO 6000: data-parallel attention, experts shared by both",
    ),
    Example(
        "h100_qwen3_30b_a3b_attn2x4_ep8",
        "eight H100: attention as four ranks of two, experts over all by DeepEP",
    ),
    Example("h200_deepseek_v3_tp8_dcp8", "eight H200, DeepSeek-V3, KV cache sharded by tokens"),
    Example(
        "h200_deepseek_v32_tp8", "eight H200, DeepSeek-V3.2, sparse attention to chosen tokens"
    ),
    Example(
        "h100_nemotron3_nano_tp2", "two H100, Nemotron 3 Nano: state spaces, attention and experts"
    ),
    Example("h100_multi_instance", "two H100, each with Llama-3.1-8B"),
    Example(
        "h100_mixed_models", "two H100, one with Llama-3.1-8B, one with Qwen3-8B", dataset=MIXED
    ),
    Example(
        "h100_cpu_prefix_pool",
        "two H100 that share host memory for KV",
        (*ROOFLINE, *SHARED, "CPU"),
    ),
    Example(
        "h100_pcie_switch_prefix_pool",
        "the same with NVLink between them and one PCIe link to the host",
        (*ROOFLINE, *SHARED, "CPU"),
    ),
    Example(
        "h100_ssd_prefix_pool",
        "one H100 with host memory and an NVMe drive for KV, by SGLang's HiCache",
        (*ROOFLINE, *HICACHE),
    ),
    Example(
        "h100_cxl_prefix_pool", "two H100 that share a CXL pool for KV", (*ROOFLINE, *SHARED, "CXL")
    ),
    Example(
        "h100_multi_shared_prefix_pool",
        "two nodes of two H100: host memory before a shared CXL pool",
        (*ROOFLINE, *SHARED, "CPU+CXL"),
    ),
    Example("h100_llama31_8b_pd", "one H100 prefills, one decodes"),
    Example("h100_llama31_8b_pd_2p1d", "two H100 prefill, one decodes, layerwise KV transfers"),
    Example(
        "h100_h200_llama31_70b_pd", "dual node: four H100 prefill, two H200 decode, Llama-3.1-70B"
    ),
    Example("h100_l40s_llama31_8b_pd", "dual node: one H100 prefills, two L40S decode"),
    Example("h100_qwen3_30b_a3b_pd", "Qwen3-30B-A3B: one H100 prefills, one decodes"),
    Example(
        "h100_gpt_oss_120b_pd",
        "gpt-oss-120b, every second layer with a window: two H100 prefill, two decode",
    ),
    Example(
        "h100_gpt_oss_120b_afd", "gpt-oss-120b: attention on two H100, experts on two others (AFD)"
    ),
    Example(
        "h100_qwen3_235b_afd",
        "Qwen3-235B-A22B: four H100 prefill; two attend, four hold the experts (AFD)",
    ),
    Example(
        "h200_deepseek_v3_afd",
        "DeepSeek-V3: eight H200 prefill; four attend, eight hold the experts (AFD)",
    ),
    Example("h800_step3_afd", "Step3-316B: attention on eight H800, experts on 16 others (AFD)"),
)
"""Every example cluster; a file may be in it with several options, the plain ones first."""

TRACES = {
    "chat_h100_300": "300 chat requests of a server with H100, lengths and arrivals",
    "example_10": "ten requests, 328 prompt tokens and 768 output tokens",
    "sessions_20": "20 agent sessions of several calls, with tool times between them",
    "shared_prefix_200": "200 requests whose prompts share prefixes, as token ids",
}
"""Every bundled trace."""


@dataclass(frozen=True)
class Bundled:
    """A file that is bundled: its name for `llmsim examples`, and what it shows."""

    name: str
    kind: str
    """`cluster` or `dataset`."""
    what: str
    path: Path


def folder() -> Path:
    """The folder with `cluster_config` and `dataset`: the checkout, or inside an installed package.

    Raises InputError where an installation has lost it.
    """
    for candidate in (PACKAGE.parent, PACKAGE / "examples"):
        if (candidate / CLUSTERS / "h100_llama31_8b.json").is_file():
            return candidate
    raise InputError(
        f"{PACKAGE / 'examples'} does not exist, although every wheel of llmsim has it; "
        "install llmsim again"
    )


def bundled() -> Iterator[Bundled]:
    """Every example, clusters first, each once."""
    root = folder()
    named = {one.file: one for one in reversed(EXAMPLES)}
    for name in dict.fromkeys(one.file for one in EXAMPLES):
        path = root / CLUSTERS / f"{name}.json"
        yield Bundled(name, "cluster", named[name].what, path)
    for name, what in TRACES.items():
        yield Bundled(name, "dataset", what, root / DATASETS / f"{name}.jsonl")


def find(name: str) -> Bundled:
    """The example of that name; its file's suffix may follow. Raises InputError for any other."""
    found = {one.name: one for one in bundled()}
    key = name.removesuffix(".jsonl").removesuffix(".json")
    if key not in found:
        begun = [one for one in found if one.startswith(key)]
        close = f' (did you mean "{begun[0]}"?)' if begun else nearest(key, found)
        raise InputError(
            f'"{name}" is no example{close}; `llmsim examples list` lists them',
            field="NAME",
            value=name,
        )
    return found[key]


def run_words(example: Bundled) -> list[str]:
    """The words of `llmsim run` that show an example, from any folder."""
    if example.kind == "dataset":
        cluster = folder() / CLUSTERS / "h100_llama31_8b.json"
        return ["--cluster-config", str(cluster), "--dataset", str(example.path)]
    shown = next(one for one in EXAMPLES if one.file == example.name)
    return [_anywhere(word) for word in shown.arguments]


def copy(example: Bundled, target: Path, *, force: bool) -> list[Path]:
    """Copies an example, and the trace that shows a cluster, into a folder.

    Raises InputError where a file would replace another one and `force` is off.
    """
    from llmsim.export.files import atomic_writer, check_writable_folder

    sources = [example.path]
    if example.kind == "cluster":
        sources += [Path(word) for word in run_words(example) if word.endswith(".jsonl")]
    check_writable_folder(target)
    for source in sources:
        there = target / source.name
        if there.exists() and not force and there.read_bytes() != source.read_bytes():
            raise InputError(
                f"{there} exists and differs from the example; name another folder, or give "
                "--force to replace it",
                file=str(there),
            )
    for source in sources:
        with source.open("rb") as stream, atomic_writer(target / source.name, "wb") as out:
            shutil.copyfileobj(stream, out)
    return [target / source.name for source in sources]


def _anywhere(word: str) -> str:
    """A word of a command line with the examples' folder before a file of theirs."""
    return str(folder() / word) if word.startswith((f"{CLUSTERS}/", f"{DATASETS}/")) else word
