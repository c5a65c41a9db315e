"""Every scheduler with every feature: it runs to the end, or a sentence says why not."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pd
import pytest
from scheduling.tiny import LACKS, SCHEDULERS, WHOLE_PROMPTS, Options, run, schedule
from test_kv_tiers import run as run_with_tiers

from llmsim import _native
from llmsim.config import EngineOverrides, load_cluster, resolve
from llmsim.config.engine.reference import features_table
from llmsim.config.engine.scheduler_kinds import FEATURES, KINDS
from llmsim.config.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster_config" / "h100_llama31_8b.json"
REQUESTS = [(float(i % 7), 20 + 13 * (i % 5), 3 + i % 6) for i in range(12)]
REQUESTS.sort()


def options(scheduler: str, **more: Any) -> Options:
    base = Options(scheduler, blocks=60, block_size=4, max_seqs=6, budget=100, max_model_len=100)
    return replace(base, per_token_ms=0.1, **more)


def ended(made: Options, requests: list[tuple[float, int, int]] = REQUESTS) -> Any:
    """Runs to the end; everything finishes, and no block is lost."""
    sim = run(requests, made)
    assert (sim.requests()["status"] == 3).all()
    counters = sim.counters()
    assert counters["free_blocks"][0] == made.blocks - 1 and counters["pool_consistent"].all()
    assert not counters["idle_with_work"].any()
    return sim


def with_stages(scheduler: str) -> None:
    made = options(scheduler, depth=3, budget=100 if scheduler in WHOLE_PROMPTS else 30)
    at_once = [(0.0, tokens, answer) for _, tokens, answer in REQUESTS]
    sim = ended(replace(made, blocks=151), at_once)  # room for six of the longest sequences
    starts, ends = sim.steps()["schedule_ps"], sim.steps()["end_ps"]
    assert (starts[1:] < ends[:-1]).any()  # a batch was formed before the one before had ended


def with_roles(scheduler: str) -> None:
    decode = [140, 160] if scheduler == "sglang" else [40, 60]  # it leaves 512 tokens free
    for push, layerwise in ((False, False), (True, False), (True, True)):
        cluster = pd.Cluster(
            [60, 60], decode, block_size=8, budget=200, push=push, layerwise=layerwise,
            scheduler=scheduler, whole_prompts=scheduler in WHOLE_PROMPTS, max_model_len=150,
            caching="enable_prefix_caching" not in LACKS[scheduler],
        )  # fmt: skip
        rows = [(700 * i, 10 + 29 * (i % 4), 5 + 7 * (i % 5)) for i in range(16)]
        sim = pd.run(rows, cluster)
        requests, counters = sim.requests(), sim.counters()
        assert (requests["status"] == 3).all()
        assert requests["emitted_tokens"].tolist() == [answer for _, _, answer in rows]
        assert counters["free_blocks"].tolist() == [59, 59, *(blocks - 1 for blocks in decode)]
        assert (sim.kv_transfers()["kv_transfer_bytes"] > 0).any()


def with_chunks(scheduler: str) -> None:
    made = options(scheduler, budget=16, extra={"chunked_prefill": True})
    cut = [tokens for step in schedule(ended(made)) for _, tokens, _ in step if tokens > 1]
    assert max(cut) == 16


def with_whole_prompts(scheduler: str) -> None:
    sim = ended(options(scheduler, extra={"chunked_prefill": False}))
    first = {}
    for step in schedule(sim):
        for request, tokens, computed in step:
            first.setdefault(request, (tokens, computed))
    assert [first[row] for row in range(len(REQUESTS))] == [(n, 0) for _, n, _ in REQUESTS]


def with_prefix_cache(scheduler: str) -> None:
    sim = ended(options(scheduler, caching=True, keys=[[1, 2, 3]] * len(REQUESTS)))
    assert sim.requests()["cached_tokens"].sum() > 0


def with_several_tables(scheduler: str) -> None:
    tables = _native.KvTables()
    tables.windows, tables.step_tokens = [0, 9], 100
    ended(options(scheduler, extra={"kv_tables": tables}))


def with_tiers(scheduler: str, *, parks: bool = False) -> None:
    keys = [[1, 2, 3, 4]] * 6
    rows = [(i * 10**11, 18, 4) for i in range(6)]
    sim = run_with_tiers(rows, keys=keys, groups=2, scheduler=scheduler, parks=parks)
    assert (sim.requests()["status"] == 3).all()
    assert sim.kv_tiers()[0]["hit_tokens"] > 0


def with_parked_recalls(scheduler: str) -> None:
    with_tiers(scheduler, parks=True)


def with_late_writes(scheduler: str) -> None:
    """Two prompts by turns in a cache of one: each is written when the other pushes it out."""
    one, other = [1, 2, 3, 4], [5, 6, 7, 8]
    rows = [(i * 10**11, 18, 4) for i in range(6)]
    sim = run_with_tiers(
        rows, keys=[one, other] * 3, blocks=7, max_seqs=1, write="BACK", scheduler=scheduler
    )
    assert (sim.requests()["status"] == 3).all()
    pool = sim.kv_tiers()[0]
    assert pool["written_chunks"] > 0 and pool["hit_tokens"] > 0


def with_decodes_alone(scheduler: str) -> None:
    sim = ended(options(scheduler, decode_only=True))
    assert sim.requests()["cached_tokens"].tolist() == [n - 1 for _, n, _ in REQUESTS]


def with_steps_ahead(scheduler: str) -> None:
    ended(options(scheduler, depth=2, extra={"async_scheduling": True}))


def with_drafts(scheduler: str) -> None:
    drafts = pd.speculation(2)
    sim = ended(options(scheduler, extra={"speculation": drafts}))
    assert sim.counters()["drafted_tokens"][0] > 0


def with_watermark(scheduler: str) -> None:
    ended(options(scheduler, extra={"watermark_blocks": 5}))


def with_queue_orders(scheduler: str) -> None:
    seen = [
        schedule(ended(options(scheduler, max_seqs=1, order=order)))
        for order in ("FCFS", "SHORTEST")
    ]
    assert seen[0] != seen[1]
    ranked = replace(options(scheduler, max_seqs=1), ranking="sjf")
    assert schedule(ended(ranked)) == seen[1]


def with_ranked_victims(scheduler: str) -> None:
    priority = [len(REQUESTS) - i for i in range(len(REQUESTS))]
    sim = ended(options(scheduler, blocks=26, ranking="priority", priority=priority))
    assert sim.counters()["preemptions"][0] > 0


RUNS: dict[str, Callable[[str], None]] = {
    "pp_size": with_stages,
    "pd_type": with_roles,
    "enable_chunked_prefill": with_chunks,
    "no_enable_chunked_prefill": with_whole_prompts,
    "enable_prefix_caching": with_prefix_cache,
    "hybrid_kv_cache": with_several_tables,
    "kv_tiers": with_tiers,
    "kv_tier_recall": with_parked_recalls,
    "kv_tier_write_back": with_late_writes,
    "skip_prefill": with_decodes_alone,
    "async_scheduling": with_steps_ahead,
    "speculative_config": with_drafts,
    "watermark": with_watermark,
    "queue_order": with_queue_orders,
    "ranked_running": with_ranked_victims,
}
WORKING = [
    (one, feature) for feature in FEATURES for one in SCHEDULERS if feature not in LACKS[one]
]
REFUSED = [(one, feature) for feature in FEATURES for one in SCHEDULERS if feature in LACKS[one]]


def test_every_feature_is_declared_by_its_name() -> None:
    assert RUNS.keys() == FEATURES.keys()
    for kind in KINDS.values():
        assert kind.lacks.keys() <= FEATURES.keys()
        for reason in kind.lacks.values():
            assert len(reason.split()) > 4 and not reason.endswith((".", ";"))


@pytest.mark.parametrize(("scheduler", "feature"), WORKING)
def test_what_goes_together_runs_to_the_end(scheduler: str, feature: str) -> None:
    RUNS[feature](scheduler)


ASKED: dict[str, dict[str, Any]] = {
    "enable_chunked_prefill": {"enable_chunked_prefill": True},
    "no_enable_chunked_prefill": {"enable_chunked_prefill": False},
    "enable_prefix_caching": {"enable_prefix_caching": True},
    "watermark": {"watermark": 0.1},
    "queue_order": {"scheduling_policy": "sjf"},
    "async_scheduling": {"async_scheduling": True},
    "speculative_config": {
        "speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": 2,
            "acceptance_rate": 0.5,
        }
    },
}
"""Options that ask for a feature."""


@pytest.mark.parametrize(("scheduler", "feature"), [pair for pair in REFUSED if pair[1] in ASKED])
def test_an_option_that_does_not_go_with_a_scheduler_is_refused(
    scheduler: str, feature: str
) -> None:
    only_vllm = f"is an option of the scheduler vllm_v1, not of {scheduler}; remove it"
    reason = KINDS[scheduler].lacks[feature]
    general = feature in ("async_scheduling", "speculative_config")
    with pytest.raises(InputError) as caught:
        resolve(load_cluster(CLUSTER), EngineOverrides(scheduler=scheduler, **ASKED[feature]))
    assert (only_vllm if general else reason) in str(caught.value)


def test_stages_of_static_batching_are_refused_with_the_reason(tmp_path: Path) -> None:
    cluster = json.loads(CLUSTER.read_text(encoding="utf-8"))
    cluster["nodes"][0]["instances"][0] |= {"num_npus": 2, "pp_size": 2, "scheduler": "static"}
    path = tmp_path / "stages.json"
    path.write_text(json.dumps(cluster), encoding="utf-8")
    with pytest.raises(InputError, match="2 pipeline stages do not go with the scheduler static"):
        resolve(load_cluster(path), EngineOverrides())


def test_the_page_has_the_table_of_the_schedulers() -> None:
    page = (ROOT / "docs" / "reference" / "schedulers.md").read_text(encoding="utf-8")
    assert features_table() in page, "features_table() of llmsim/config/engine/reference.py"
