"""Asks `llmsim.size` twelve questions and checks the answers by an exhaustive search.

usage: python evaluation/size_questions.py [--check] [--only NAME]

`--check` runs every deployment with fewer or as many devices as the answer, which takes minutes.
Times are CPU seconds of this process, which works alone (`jobs=1`).
"""

import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmsim.cli.arguments import OneSentenceParser
from llmsim.sizing.answer import Answer, text
from llmsim.sizing.capacity import FEWEST_VERIFIED, able
from llmsim.sizing.measure import Bench
from llmsim.sizing.plan import Plan
from llmsim.sizing.search.question import Costs, Question
from llmsim.sizing.shapes import units
from llmsim.sizing.size import size

ROOT = Path(__file__).resolve().parents[1]
SESSIONS = str(ROOT / "dataset" / "sessions_20.jsonl")


@dataclass(frozen=True)
class Asked:
    """One question."""

    name: str
    model: str
    device: str
    options: dict[str, Any]


QUESTIONS = (
    Asked(
        "dense", "meta-llama/Llama-3.1-70B", "H200",
        {"rate": 10, "input": "fixed:2000", "output_tokens": "fixed:300",
         "slo": "ttft:1000,tpot:40"},
    ),
    Asked(
        "moe", "Qwen/Qwen3-30B-A3B", "H100",
        {"rate": 60, "input": "lognormal:1000", "output_tokens": "lognormal:300",
         "slo": "ttft:500,tpot:20"},
    ),
    Asked(
        "pd", "meta-llama/Llama-3.1-8B", "H100",
        {"rate": 60, "input": "lognormal:1000", "output_tokens": "lognormal:200",
         "slo": "ttft:300,tpot:12", "architecture": "pd"},
    ),
    Asked(
        "long context", "meta-llama/Llama-3.1-70B", "H200",
        {"rate": 0.5, "input": "fixed:60000", "output_tokens": "fixed:500",
         "slo": "ttft:15000,tpot:60"},
    ),
    Asked(
        "agentic trace", "Qwen/Qwen3-32B", "H100",
        {"dataset": SESSIONS, "slo": "ttft:150,tpot:15"},
    ),
    Asked(
        "two SLO classes", "meta-llama/Llama-3.1-8B", "H100",
        {"rate": 20, "classes": "chat:0.7|batch:0.3", "input": "lognormal:300|fixed:4000",
         "output_tokens": "lognormal:150|fixed:400",
         "slo": "chat=ttft:300,tpot:20;batch=e2el:20000"},
    ),
    Asked(
        "cheapest of five", "meta-llama/Llama-3.1-8B", "H100,H200,L40S,B200,A100-80GB-SXM",
        {"rate": 60, "input": "lognormal:1000", "output_tokens": "lognormal:300",
         "slo": "ttft:500,tpot:20"},
    ),
    Asked(
        "afd", "Qwen/Qwen3-30B-A3B", "H100",
        {"rate": 60, "slo": "ttft:500,tpot:20", "architecture": "afd"},
    ),
    Asked(
        "experts with roles", "deepseek-ai/DeepSeek-V3", "H200",
        {"rate": 20, "input": "fixed:2000", "output_tokens": "fixed:500",
         "slo": "ttft:2000,tpot:60"},
    ),
    Asked(
        "experts over nodes", "deepseek-ai/DeepSeek-R1", "H100",
        {"rate": 2, "input": "fixed:2000", "output_tokens": "fixed:300",
         "slo": "ttft:3000,tpot:60"},
    ),
    Asked(
        "dense over nodes", "meta-llama/Llama-3.1-405B", "H100",
        {"rate": 1, "input": "fixed:2000", "output_tokens": "fixed:300",
         "slo": "ttft:5000,tpot:100"},
    ),
    Asked(
        "little room on a node", "moonshotai/Kimi-K2-Instruct", "H200",
        {"rate": 4, "input": "fixed:2000", "output_tokens": "fixed:300",
         "slo": "ttft:3000,tpot:60"},
    ),
)  # fmt: skip


def cheaper(answer: Answer) -> tuple[int, list[Plan]]:
    """How many deployments cost less than the answer, and those of them that meet the targets."""
    assert answer.best is not None
    question, costs = answer.found.question, Costs(answer.prices)
    limit = costs(answer.best.plan)
    bench, count, found = Bench(), 0, []
    for device in question.devices:
        for architecture in question.architectures:
            for plan in _wholes(question, device, architecture):
                for counts in _counts(plan, limit, costs):
                    wanted = plan.with_counts(*counts)
                    count += 1
                    run, missed, problem = _able(bench, wanted, question)
                    if run is not None and run.complete and not missed and not problem:
                        found.append(wanted)
    return count, found


def _able(bench: Bench, plan: Plan, question: Question) -> Any:
    from llmsim.config.errors import LlmsimError

    try:
        return able(bench, plan, question.load, question.targets, fewest=FEWEST_VERIFIED)
    except LlmsimError as error:
        return None, [], str(error)


def _wholes(question: Question, device: str, architecture: str) -> list[Plan]:
    """One instance of each layout, and one of each role for every pair of layouts."""
    found = list(units(question.model, device, architecture, question.devices_per_node))
    prefills = [plan.pools[0] for plan, role in found if role == "prefill"]
    decodes = [plan.pools[1] for plan, role in found if role == "decode"]
    return [plan for plan, role in found if role == "both"] + [
        Plan(
            question.model,
            device,
            pools,
            devices_per_node=question.devices_per_node,
            server=question.server,
        )
        for pools in itertools.product(prefills, decodes)
    ]


def _counts(plan: Plan, limit: float, costs: Costs) -> list[tuple[int, ...]]:
    """Numbers of instances whose deployment costs less than the limit."""
    most = int(limit / min(costs(plan.with_counts(*(1,) * len(plan.pools))), 1))
    ranges = [range(1, min(64, most) + 1)] * len(plan.pools)
    return [
        counts
        for counts in itertools.product(*ranges)
        if costs(plan.with_counts(*counts)) < limit * (1 - 1e-9)
    ]


def main() -> None:
    """Prints each answer, its CPU seconds, and what an exhaustive search finds cheaper."""
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="search exhaustively, too")
    parser.add_argument("--only", default="", help="the name of one question")
    given = parser.parse_args()
    for asked in QUESTIONS:
        if given.only not in ("", asked.name):
            continue
        start = time.process_time()
        answer = size(asked.model, asked.device, **asked.options)
        print(f"## {asked.name}: {time.process_time() - start:.1f} CPU s\n\n{text(answer)}")
        if given.check and answer.best is not None:
            count, found = cheaper(answer)
            shown = "; ".join(f"{one.device} {one.label}" for one in found) or "nothing"
            print(f"Exhaustive search of {count} cheaper deployments finds: {shown}\n", flush=True)


if __name__ == "__main__":
    main()
