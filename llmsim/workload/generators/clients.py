"""Many clients with habits of their own: few send most, each has its burstiness and its lengths, as
ServeGen (Xiang et al., 2025) finds in production: the sum is bursty and drifts in ways that one
Poisson process with one mix of lengths does not.
"""

import numpy as np

from llmsim.core import Int64, Workload
from llmsim.workload.generators.parts import Parts
from llmsim.workload.limits import MAX_TOKENS
from llmsim.workload.spec_text import SMALLEST_CV
from llmsim.workload.synthetic.distributions import Float64, Poisson
from llmsim.workload.synthetic.workload import SharedPrefixes, content_of, refuse_endless

KEYS = ("n", "rate", "clients", "skew", "cv", "spread", "input", "output", "prefix", "seed")
REQUIRED = ("n", "rate", "input", "output")
EXAMPLE = "synthetic:clients,n=10000,rate=20,clients=50,input=lognormal:600,output=lognormal:200"


def generate(parts: Parts) -> Workload:
    """Client c of `clients` (20) sends a share proportional to (c + 1)^-skew (1.2) of the n
    requests in n / rate seconds, with gamma gaps whose coefficient of variation is `cv` (1.5) times
    exp(N(0, 0.5^2)); its lengths are draws of `input` and `output` times a factor of its own,
    lognormal of mean 1 with sigma `spread` (0.6); each of its prompts begins with `prefix` (0)
    tokens of its own system prompt, on top.
    """
    n, clients = parts.integer("n", None, 1), parts.integer("clients", "20", 1, 1_000_000)
    rate, skew = parts.number("rate", None), parts.number("skew", "1.2", most=10)
    spread, cv = (
        parts.number("spread", "0.6", most=5),
        parts.number("cv", "1.5", least=SMALLEST_CV, most=20),
    )
    refuse_endless(Poisson(rate), n, parts.text)
    prefix_tokens = parts.integer("prefix", "0", 0, MAX_TOKENS)
    share = np.arange(1, clients + 1, dtype=np.float64) ** -skew
    share /= share.sum()
    counts = parts.stream(0).multinomial(n, share)
    horizon_s = n / rate
    times_s = (
        _times_s(
            parts, counts, (cv * np.exp(0.5 * parts.stream(1).standard_normal(clients))) ** -2.0
        )
        * horizon_s
    )
    client = np.repeat(np.arange(clients), counts)
    order = np.argsort(times_s, kind="stable")
    arrival_ns = np.rint(np.minimum(times_s[order], 1e10) * 1e9).astype(np.int64)
    factors = np.exp(spread * parts.stream(3).standard_normal((2, clients)) - spread**2 / 2)
    client = client[order]
    lengths = [
        np.clip(np.rint(sampled * factor[client]), 1, MAX_TOKENS).astype(np.int64)
        for sampled, factor in zip(
            (
                parts.lengths("input", None).draw(parts.stream(4), n),
                parts.lengths("output", None).draw(parts.stream(5), n),
            ),
            factors,
            strict=True,
        )
    ]
    input_tokens = lengths[0] + prefix_tokens
    prefixes = SharedPrefixes(clients, prefix_tokens) if prefix_tokens else None
    ones = np.ones(n, dtype=np.int64)
    content = content_of(prefixes, parts.granularity, client, ones, input_tokens + lengths[1])
    return parts.workload(arrival_ns, input_tokens, lengths[1], content)


def _times_s(parts: Parts, counts: Int64, shape: Float64) -> Float64:
    """Arrivals of each client between 0 and 1, client after client: one gap more than it has
    requests, scaled to fill the time. For shape 1 that is a Poisson process, given its count.
    """
    gap_counts = counts + 1
    sums = np.cumsum(parts.stream(2).standard_gamma(np.repeat(shape, gap_counts)))
    last = np.cumsum(gap_counts) - 1
    before = np.concatenate(([0.0], sums[last[:-1]]))
    # A very bursty client's gaps may all underflow to 0.
    length = np.maximum(sums[last] - before, np.finfo(np.float64).tiny)
    scaled = (sums - np.repeat(before, gap_counts)) / np.repeat(length, gap_counts)
    return np.asarray(np.delete(scaled, last), dtype=np.float64)
