"""`python -m bench engine [NAME...]`: the engine's own benchmarks (astra-sim/bench), built alone;
one line per figure.

Without a name: what takes seconds. `spread`, `skewed` and `quantum` are the large all-to-alls of
the fair-share network, a minute or more each; astra-sim/README.md says what they are for.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LARGE = ("spread", "skewed", "quantum")


def build() -> Path:
    """The folder with the benchmarks; CMake's cache makes a second build fast."""
    folder = ROOT / "build" / "bench-engine"
    configure = ("cmake", "-S", str(ROOT / "astra-sim"), "-B", str(folder))
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    targets = ("--target", "astra_bench", "--target", "fair_bench")
    subprocess.run(
        ("cmake", "--build", str(folder), *targets), check=True, stdout=subprocess.DEVNULL
    )
    return folder


def run(names: Sequence[str]) -> None:
    """Runs the named large benchmarks, or the small ones; raises SystemExit for an unknown name."""
    unknown = [name for name in names if name not in LARGE]
    if unknown:
        raise SystemExit(
            f"there is no engine benchmark {unknown[0]!r}: {', '.join(LARGE)}, or none for the "
            "small ones"
        )
    folder = build()
    commands = [[str(folder / "fair_bench"), name] for name in names] or [
        [str(folder / "astra_bench")]
    ]
    for command in commands:
        subprocess.run(command, check=True)
