"""What clients ask for: trace files, seeded synthetic traces, and the columns both end up in."""

from llmsim.workload.dataset import load_dataset
from llmsim.workload.jsonl import load_trace
from llmsim.workload.spec_text import parse_synthetic
from llmsim.workload.synthetic.workload import SyntheticSpec, generate

__all__ = ["SyntheticSpec", "generate", "load_dataset", "load_trace", "parse_synthetic"]
