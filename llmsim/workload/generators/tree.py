"""Prefix trees: prompts that share a beginning with some, a longer one with fewer, as few-shot and
RAG prompts do.
"""

import numpy as np

from llmsim.core import Workload
from llmsim.workload.block_content_ids import with_granularity
from llmsim.workload.generators.parts import Parts
from llmsim.workload.limits import MAX_TOKENS
from llmsim.workload.synthetic.workload import arrivals_ns

KEYS = ("n", "rate", "arrivals", "depth", "branch", "node", "skew", "input", "output", "seed")
REQUIRED = ("n", "input", "output")
EXAMPLE = (
    "synthetic:tree,n=2000,rate=10,depth=3,branch=4,node=512,input=lognormal:150,"
    "output=lognormal:150"
)


def generate(parts: Parts) -> Workload:
    """A prompt is a path of `depth` (3) nodes of `node` (256) tokens from the root of a tree, then
    `input` tokens of its own. The first node is one of `branch` (4), and so is every next one under
    it; child i (from 1) is chosen with probability proportional to i^-skew (1).
    """
    n, node = parts.integer("n", None, 1), parts.integer("node", "256", 1, MAX_TOKENS)
    depth, branch = parts.integer("depth", "3", 1, 16), parts.integer("branch", "4", 1, 10_000)
    weights = np.arange(1, branch + 1, dtype=np.float64) ** -parts.number("skew", "1", most=100)
    cumulative = np.cumsum(weights)
    chosen = np.searchsorted(
        cumulative, parts.stream(0).random((n, depth)) * cumulative[-1], side="right"
    )
    paths = np.empty((n, depth), dtype=np.uint64)
    above = np.zeros(n, dtype=np.int64)
    known = 1
    for level in range(depth):
        # Nodes are numbered as they are found, level by level, so that wide and deep trees stay
        # small numbers.
        seen, number = np.unique(above * branch + chosen[:, level], return_inverse=True)
        paths[:, level] = number + known
        above = number.astype(np.int64)
        known += len(seen)
    input_tokens = parts.lengths("input", None).draw(parts.stream(1), n) + depth * node
    output = parts.lengths("output", None).draw(parts.stream(2), n)
    arrival = arrivals_ns(parts.arrivals(), n, parts.text, parts.stream(3))
    offsets = np.arange(0, n * depth + 1, depth, dtype=np.int64)
    workload = parts.workload(
        arrival, input_tokens, output, (offsets, paths.ravel()), granularity=node
    )
    return with_granularity(workload, parts.granularity)
