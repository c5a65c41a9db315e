"""The metrics of vLLM 0.33: names, labels and buckets, for `/metrics` and for OpenMetrics."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

ENGINE_LABELS = ("model_name", "engine")
"""Labels that every metric of an engine carries."""
WAITING_REASONS = ("capacity", "deferred")
PROMPT_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
CACHE_SOURCES = ("device", "host", "p2p", "disk", "external_unspecified")
ADMISSION_REASONS = ("max_num_queued_reqs", "max_num_queued_tokens")
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


class Buckets(Enum):
    """A family of bounds that several histograms share."""

    LATENCY = (
        0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
        240.0, 480.0, 960.0, 1920.0, 7680.0,
    )  # fmt: skip
    TTFT = (
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
        20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
    )  # fmt: skip
    TOKEN_TIME = (
        0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
        20.0, 40.0, 80.0,
    )  # fmt: skip
    STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
    SAMPLES = (1, 2, 5, 10, 20)
    PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
    TOKENS = ()
    """1, 2, 5, 10 and so on, up to the longest sequence of the model."""

    def bounds(self, max_model_len: int) -> tuple[float, ...]:
        """The upper bounds for a model whose longest sequence has this many tokens."""
        if self is not Buckets.TOKENS:
            return tuple(float(bound) for bound in self.value)
        powers = (10**power for power in range(len(str(max_model_len))))
        bounds = [float(digit * power) for power in powers for digit in (1, 2, 5)]
        return tuple(bound for bound in bounds if bound <= max_model_len)


@dataclass(frozen=True)
class Metric:
    """One metric; `labels` are those beside `ENGINE_LABELS`."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: Buckets | None = None


GAUGES = (
    Metric("num_requests_running", "Requests in execution."),
    Metric("num_requests_waiting", "Requests that wait."),
    Metric(
        "num_requests_waiting_by_reason",
        "Requests that wait for capacity, or are deferred: their KV or an adapter's slot is due.",
        ("reason",),
    ),
    Metric("engine_sleep_state", "State of the engine; it is always awake.", ("sleep_state",)),
    Metric("kv_cache_usage_perc", "KV cache usage, 1 is full."),
)
COUNTERS = (
    Metric("prefix_cache_queries", "Tokens looked up in the prefix cache."),
    Metric("prefix_cache_hits", "Tokens found in the prefix cache."),
    Metric("external_prefix_cache_queries", "Tokens looked up behind the prefix cache."),
    Metric("external_prefix_cache_hits", "Tokens found behind the prefix cache."),
    Metric("mm_cache_queries", "Images looked up; requests over HTTP have none."),
    Metric("mm_cache_hits", "Images found; requests over HTTP have none."),
    Metric("num_preemptions", "Preemptions."),
    Metric("prompt_tokens", "Prompt tokens processed."),
    Metric("prompt_tokens_by_source", "Prompt tokens by where their KV came from.", ("source",)),
    Metric("prompt_tokens_cached", "Prompt tokens that were not computed."),
    Metric(
        "prompt_tokens_cached_by_source",
        "Tokens found in the prefix cache and behind it, by where they were.",
        ("source",),
    ),
    Metric("generation_tokens", "Tokens generated."),
)
SPECULATION = (
    Metric("spec_decode_num_drafts", "Verifications of drafts, one per request and step."),
    Metric("spec_decode_num_draft_tokens", "Draft tokens that were verified."),
    Metric("spec_decode_num_accepted_tokens", "Draft tokens that held."),
    Metric(
        "spec_decode_num_accepted_tokens_per_pos",
        "Draft tokens that held, by their position.",
        ("position",),
    ),
)
"""Counters of engines with a speculative_config."""
SUCCESS = Metric("request_success", "Requests that finished, by reason.", ("finished_reason",))
REJECTIONS = Metric("admission_rejections", "Requests turned away, by reason.", ("reason",))
"""The only counter of a model, and not of an engine: it has the label model_name alone."""
STEP_TOKENS = Metric(
    "iteration_tokens_total", "Tokens of each step that gave answers.", buckets=Buckets.STEP_TOKENS
)
HISTOGRAMS = (
    Metric("request_prompt_tokens", "Tokens of each prompt.", buckets=Buckets.TOKENS),
    Metric("request_generation_tokens", "Tokens of each answer.", buckets=Buckets.TOKENS),
    Metric(
        "request_max_num_generation_tokens",
        "Tokens of the longest answer to each prompt.",
        buckets=Buckets.TOKENS,
    ),
    Metric("request_params_n", "Answers that each prompt gets.", buckets=Buckets.SAMPLES),
    Metric("request_params_max_tokens", "Limit of each answer.", buckets=Buckets.TOKENS),
    Metric("time_to_first_token_seconds", "Time to first token.", buckets=Buckets.TTFT),
    Metric("inter_token_latency_seconds", "Time between tokens.", buckets=Buckets.TOKEN_TIME),
    Metric(
        "request_time_per_output_token_seconds",
        "Mean time per output token of a request.",
        buckets=Buckets.TOKEN_TIME,
    ),
    Metric("e2e_request_latency_seconds", "End-to-end latency.", buckets=Buckets.LATENCY),
    Metric("request_queue_time_seconds", "Time in the queue.", buckets=Buckets.LATENCY),
    Metric("request_inference_time_seconds", "Time running.", buckets=Buckets.LATENCY),
    Metric("request_prefill_time_seconds", "Time in prefill.", buckets=Buckets.LATENCY),
    Metric("request_decode_time_seconds", "Time in decode.", buckets=Buckets.LATENCY),
    Metric("request_num_preemptions", "Preemptions of a request.", buckets=Buckets.PREEMPTIONS),
    Metric(
        "request_prefill_kv_computed_tokens",
        "Prompt tokens of each request that were computed.",
        buckets=Buckets.TOKENS,
    ),
)
"""Those of requests; STEP_TOKENS is the one of steps."""
NAMED = MappingProxyType(
    {
        one.name: one
        for one in (
            *GAUGES, *COUNTERS, *SPECULATION, SUCCESS, REJECTIONS, STEP_TOKENS, *HISTOGRAMS,
        )
    }
)  # fmt: skip


def full_name(name: str) -> str:
    """A metric as Prometheus knows it."""
    return f"vllm:{name}"


def labels_of(metric: Metric) -> Sequence[str]:
    """All labels of an engine's metric."""
    return (*ENGINE_LABELS, *metric.labels)
