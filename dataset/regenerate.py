"""Writes the bundled traces again, byte for byte: python dataset/regenerate.py [FOLDER]."""

from pathlib import Path

from llmsim.cli.arguments import OneSentenceParser
from llmsim.export.jsonl import write_jsonl
from llmsim.workload import generate, parse_synthetic

TRACES = {
    "example_10.jsonl": (
        "synthetic:n=10,rate=5,input=uniform:10-60,output=uniform:20-120,seed=10",
        True,
    ),
    "chat_h100_300.jsonl": (
        "synthetic:n=300,rate=10,input=lognormal:220:cv=1.3:min=4:max=4096,"
        "output=lognormal:190:cv=1:min=2:max=2048,seed=300",
        False,
    ),
    "shared_prefix_200.jsonl": (
        "synthetic:n=200,rate=8,input=lognormal:160:cv=1:min=8:max=2048,output=lognormal:120:cv=0.8:min=2:max=1024,"
        "prefixes=5:tokens=512:share=0.8,seed=200",
        True,
    ),
    "sessions_20.jsonl": (
        "synthetic:n=20,arrivals=gamma:cv=2,rate=0.5,input=lognormal:180:cv=1:min=8:max=2048,"
        "output=lognormal:90:cv=0.8:min=2:max=512,calls=uniform:2-8,tool_ms=lognormal:1500:cv=1.2,seed=20",
        True,
    ),
}
"""File -> (specification, whether token ids are written)."""


def regenerate(folder: Path) -> None:
    """Writes every trace of `TRACES` into `folder`."""
    for name, (specification, token_ids) in TRACES.items():
        write_jsonl(generate(parse_synthetic(specification)), folder / name, token_ids=token_ids)


if __name__ == "__main__":
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent)
    regenerate(parser.parse_args().folder)
