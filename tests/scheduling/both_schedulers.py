"""Runs with `vllm_v1` and with the installed vLLM, in an interpreter that has vLLM.

    python both_schedulers.py SITE-PACKAGES < CASES > RESULTS

CASES is one JSON object, the options of a run by name, and RESULTS has a line for each. Packages
that the interpreter lacks come from SITE-PACKAGES.
"""

import contextlib
import io
import json
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

COUNTS = ("completed", "cancelled", "failed", "steps", "preemptions", "speculation", "kv_tiers")


def run(words: list[str], scheduler: str) -> dict[str, Any]:
    """What a run says, with a digest of its requests and of its steps."""
    import pyarrow.parquet as parquet

    from llmsim.cli import run_main

    said, errors = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        requests, kept = Path(folder, "requests.csv"), Path(folder, "run")
        files = ["--json", "--output", str(requests), "--run-dir", str(kept)]
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
            code = run_main([*words, "--scheduler", scheduler, *files])
        if code != 0:
            return {"code": code, "error": errors.getvalue()}
        summary = json.loads(said.getvalue())
        steps = parquet.read_table(kept / "steps.parquet").to_pandas().to_csv()
        return {
            "code": code,
            "counts": {name: summary.get(name) for name in COUNTS},
            "invariants": sorted(set(summary["invariants"].values())),
            "requests": sha256(requests.read_bytes()).hexdigest(),
            "steps": sha256(steps.encode()).hexdigest(),
        }


def main() -> None:
    """Each case with our own scheduler, and twice with vLLM's."""
    sys.path.append(sys.argv[1])
    from llmsim.scheduling.conformance.vllm.live import engine_profile_of, installed_version

    profile = engine_profile_of(installed_version() or "none")
    for name, words in json.load(sys.stdin).items():
        given = [*words, "--engine-profile", profile]
        found = [run(given, one) for one in ("vllm_v1", "vllm", "vllm")]
        print(json.dumps({"name": name, "profile": profile, "runs": found}), flush=True)


if __name__ == "__main__":
    main()
