"""How fast an emulation is, and whether fixed batch times come out (figures 8 to 10 of Revati).

    python evaluation/emulation_speed.py --engine-python ENGINE/bin/python
    python evaluation/emulation_speed.py --engine sglang --engine-python ENGINE/bin/python

prints two tables. The first has the devices' own times: speed, and CPU time per request. The second
has steps of a fixed time at several rates: what clients see, against `llmsim run` with these steps.
The paper compares with an engine that sleeps for each step; `llmsim run` is the same without the
noise of a machine, and both have no predictor.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

from llmsim.cli.arguments import OneSentenceParser
from llmsim.emulation.engines import ENGINES

CLUSTER = "cluster_config/h100_llama31_8b.json"
LENGTHS = "input=lognormal:220,output=lognormal:190,seed=1"
"""Near those of ShareGPT, which the paper takes."""
RATES = (2, 10)
FIXED = ((5, 4), (10, 4), (20, 4), (40, 4), (20, 0.5), (20, 2), (20, 8))
"""(batch time in ms, requests per second)."""


def outputs(words: list[str], folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """(manifest, requests) of a command of llmsim that writes a run folder."""
    command = [sys.executable, "-m", "llmsim", *words, "--run-dir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return manifest, pd.read_parquet(folder / "requests.parquet")


def both(
    engine: str, python: Path, options: list[str], folder: Path
) -> tuple[dict[str, Any], pd.DataFrame, pd.DataFrame]:
    """(manifest, requests) of an emulation, and the requests of the run."""
    given = ["--cluster-config", CLUSTER, *ENGINES[engine].options(), *options]
    emulates = ["emulate", engine, "--engine-python", str(python)]
    manifest, emulated = outputs([*emulates, *given], folder / "emulated")
    _, simulated = outputs(["run", *given], folder / "run")
    return manifest, emulated, simulated


def tpot_ms(requests: pd.DataFrame) -> "pd.Series[float]":
    """Of each request with several tokens."""
    several = requests[requests.output_tokens > 1]
    decode_ps = several.finish_ps - several.first_token_ps
    return decode_ps / (several.output_tokens - 1) / 1e9


def worst(emulated: pd.DataFrame, simulated: pd.DataFrame) -> str:
    """The largest difference of a request's TTFT or finish, relative to it."""
    ttft = (emulated.ttft_ps - simulated.ttft_ps).abs() / simulated.ttft_ps
    finish = (emulated.finish_ps - simulated.finish_ps).abs() / simulated.e2el_ps
    return f"{max(ttft.max(), finish.max()):.3%}"


def figures(requests: pd.DataFrame) -> list[str]:
    """TTFT and TPOT, median and 99th percentile."""
    rows = (requests.ttft_ps / 1e9, tpot_ms(requests))
    return [f"{one.quantile(0.5):.2f} / {one.quantile(0.99):.2f}" for one in rows]


def speed(manifest: dict[str, Any], requests: int) -> list[str]:
    """Of the wall, of the CPU, and CPU time per request."""
    return [
        f"{manifest['virtual_s']:.1f}",
        f"{manifest['virtual_s'] / manifest['wall_s']:.1f}",
        f"{manifest['virtual_s'] / manifest['cpu_s']:.1f}",
        f"{manifest['cpu_s'] / requests * 1e3:.1f}",
    ]


def main() -> None:
    """Prints the tables."""
    parser = OneSentenceParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", default="vllm", choices=ENGINES)
    parser.add_argument("--engine-python", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=300)
    given = parser.parse_args()
    print(
        "| requests/s | virtual s | times real time | virtual s per CPU s | CPU ms per request "
        "| largest difference to run |\n| --- | --- | --- | --- | --- | --- |"
    )
    for rate in RATES:
        load = f"synthetic:n={given.requests},rate={rate},{LENGTHS}"
        with tempfile.TemporaryDirectory() as folder:
            manifest, emulated, simulated = both(
                given.engine, given.engine_python, ["--dataset", load], Path(folder)
            )
        row = [str(rate), *speed(manifest, given.requests), worst(emulated, simulated)]
        print(f"| {' | '.join(row)} |", flush=True)
    print(
        "\n| batch, ms | requests/s | TTFT p50 / p99, ms | TPOT p50 / p99, ms "
        "| largest difference to run | virtual s | times real time | virtual s per CPU s "
        "| CPU ms per request |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    for batch_ms, rate in FIXED:
        load = f"synthetic:n={given.requests},rate={rate},{LENGTHS}"
        with tempfile.TemporaryDirectory() as folder:
            steps = Path(folder) / "steps.json"
            steps.write_text(json.dumps({"beta": [1000 * batch_ms, 0, 0], "alpha": [0, 0, 0]}))
            options = ["--dataset", load, "--cost-source", f"blackbox:{steps}"]
            options += ["--max-num-batched-tokens", "512"]  # the paper's chunk
            manifest, emulated, simulated = both(
                given.engine, given.engine_python, options, Path(folder)
            )
        row = [str(batch_ms), str(rate), *figures(emulated), worst(emulated, simulated)]
        print(f"| {' | '.join([*row, *speed(manifest, given.requests)])} |", flush=True)


if __name__ == "__main__":
    main()
