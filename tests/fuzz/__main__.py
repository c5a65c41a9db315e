"""`python -m fuzz`: damaged inputs for every reader, from random seeds unless --seed names the
first one.

Prints the seeds, what breaks the rule, and where the input lies; ends with 1 where something does.
"""

import argparse
import faulthandler
import os
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
FAST_SHARE = 10
"""Inputs of a reader of a millisecond for one of a command that takes tens of them."""
MOST_BYTES = 8 << 30
"""Of memory: an input that needs more is a fault."""


def main() -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="inputs over all readers")
    parser.add_argument(
        "--target", default="", help="readers whose names begin so, comma-separated (default: all)"
    )
    parser.add_argument("--seed", type=int, default=None, help="the first seed (default: random)")
    options = parser.parse_args()
    faulthandler.enable()  # a crash of a library shows where
    os.environ.setdefault(
        "LLMSIM_DEBUG", "1"
    )  # a defect is never to be mistaken for a refused input
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    from fuzz.runner import targets

    chosen = targets(options.target)
    if not chosen:
        parser.error(f"no reader has a name that begins with {options.target}")
    first = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    shares = {target.name: 1 if target.slow else FAST_SHARE for target in chosen}
    unit = -(-options.count // sum(shares.values()))
    counts = {name: unit * share for name, share in shares.items()}
    print(f"{sum(counts.values())} inputs for {len(chosen)} readers, from seed {first}", flush=True)
    broken = sum(_fuzzed(target, first, counts[target.name]) for target in chosen)
    last = first + max(counts.values()) - 1
    print(f"{sum(counts.values())} inputs, {broken} broke the rule (seeds {first} to {last})")
    return int(broken > 0)


def _fuzzed(target: "object", first: int, count: int) -> int:
    from fuzz.runner import SECONDS, Target, damaged, scratch, verdict

    assert isinstance(target, Target)
    kept = Path(tempfile.gettempdir()) / "llmsim-fuzz"
    began, broken = time.monotonic(), 0
    seen: dict[str, int] = {}
    with scratch() as folder:
        for seed in range(first, first + count):
            data = damaged(target, seed)
            faulthandler.dump_traceback_later(6 * SECONDS, exit=True)
            wrong = verdict(target, folder, data)
            if not wrong:
                continue
            broken += 1
            kind = wrong.strip().rsplit("\n", 1)[-1][:60]
            seen[kind] = seen.get(kind, 0) + 1
            if seen[kind] == 1:
                kept.mkdir(exist_ok=True)
                (kept / f"{target.name}-{seed}").write_bytes(data)
                print(
                    f"{target.name} {seed}: {wrong.strip()} ({kept}/{target.name}-{seed})",
                    flush=True,
                )
    faulthandler.cancel_dump_traceback_later()
    print(
        f"{target.name}: {count} inputs, {broken} broke the rule, {time.monotonic() - began:.1f} s",
        flush=True,
    )
    return broken


if __name__ == "__main__":
    sys.exit(main())
