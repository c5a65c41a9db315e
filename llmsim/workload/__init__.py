"""What clients ask for: trace files, seeded synthetic traces, and the columns both end up in."""

from typing import TYPE_CHECKING

from llmsim.loading import loaded_on_use

if TYPE_CHECKING:
    from llmsim.workload.dataset import load_dataset
    from llmsim.workload.jsonl import load_trace
    from llmsim.workload.spec_text import parse_synthetic
    from llmsim.workload.synthetic.workload import SyntheticSpec, generate

__all__ = ["SyntheticSpec", "generate", "load_dataset", "load_trace", "parse_synthetic"]

__getattr__ = loaded_on_use(
    __name__,
    {
        "SyntheticSpec": "llmsim.workload.synthetic.workload",
        "generate": "llmsim.workload.synthetic.workload",
        "load_dataset": "llmsim.workload.dataset",
        "load_trace": "llmsim.workload.jsonl",
        "parse_synthetic": "llmsim.workload.spec_text",
    },
)
