"""Models and devices: what a config.json says, which operators run, how many bytes they hold and
move.
"""

from llmsim.model.dtypes import DTYPES, dtype_bytes, short_dtype
from llmsim.model.families.family import family_types
from llmsim.model.families.presets import load_model, model_names
from llmsim.model.hardware import hardware_names, load_hardware
from llmsim.model.layout import Layout
from llmsim.model.memory.ledger import MemoryLedger, memory_ledger
from llmsim.model.memory.profile_run import DEFAULT_NUM_SMS
from llmsim.model.memory.requirements import Elsewhere
from llmsim.model.memory.sizes import (  # fmt: skip
    KvGroup,
    kv_bytes_per_token,
    kv_groups,
    padded_experts,
    parameter_count,
    state_bytes_per_sequence,
    weight_bytes,
)
from llmsim.model.operator import (
    AdapterCopy,
    AllToAll,
    Attention,
    Collective,
    ContextExpansion,
    CopyRate,
    Elementwise,
    Embedding,
    EncoderAttention,
    Gemm,
    IndexerScores,
    LoraKernel,
    Moe,
    Operator,
    ResidualNorm,
    Routed,
    Sampler,
    StateSpace,
    StreamMix,
)
from llmsim.model.operators.attention_variants import (
    CompressedAttention,
    Indexer,
    LatentAttention,
    LinearAttention,
)
from llmsim.model.operators.decoder import operators
from llmsim.model.parallel.sharding import RankShape, layout_problem, padded_vocab_size, rank_shape
from llmsim.model.types import Dtypes, Hardware, LayerKind, ModelConfig, resolve_dtypes

__all__ = [
    "DEFAULT_NUM_SMS",
    "DTYPES",
    "AdapterCopy",
    "AllToAll",
    "Attention",
    "Collective",
    "CompressedAttention",
    "ContextExpansion",
    "CopyRate",
    "Dtypes",
    "Elementwise",
    "Elsewhere",
    "Embedding",
    "EncoderAttention",
    "Gemm",
    "Hardware",
    "Indexer",
    "IndexerScores",
    "KvGroup",
    "LatentAttention",
    "LayerKind",
    "Layout",
    "LinearAttention",
    "LoraKernel",
    "MemoryLedger",
    "ModelConfig",
    "Moe",
    "Operator",
    "RankShape",
    "ResidualNorm",
    "Routed",
    "Sampler",
    "StateSpace",
    "StreamMix",
    "dtype_bytes",
    "family_types",
    "hardware_names",
    "kv_bytes_per_token",
    "kv_groups",
    "layout_problem",
    "load_hardware",
    "load_model",
    "memory_ledger",
    "model_names",
    "operators",
    "padded_experts",
    "padded_vocab_size",
    "parameter_count",
    "rank_shape",
    "resolve_dtypes",
    "short_dtype",
    "state_bytes_per_sequence",
    "weight_bytes",
]
