"""Architecture descriptions: one JSON file for each family of models says how its config.json is to
be read.

How the values of such a file are found in a config: rules.py.
"""

from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from llmsim.config.errors import InputError, NotYetError, nearest
from llmsim.config.files import input_files
from llmsim.model.families.family_rules import Rule
from llmsim.model.families.fields import Fields, Reader, shown
from llmsim.model.operators.attention_variants import LinearKind
from llmsim.model.types import LayerKind
from llmsim.presets import PRESETS_DIR

FAMILIES_DIR = PRESETS_DIR / "families"
LOCATION = "llmsim/presets/families"
FAMILY_FILE = "family.json"
"""Beside a config.json: the description of a family that is not bundled."""

LAYER_NAMES: dict[str, LayerKind] = {
    "full_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "attention": "full",
    "mamba": "linear",
    "conv": "linear",
}
"""What transformers calls them in `layer_types`."""

INTERMEDIATE: Rule = ["intermediate_size", "ffn_dim"]
KV_HEADS: Rule = ["num_key_value_heads", "num_attention_heads"]


class Heads(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Heads of softmax attention in layers of one kind, where the family's own rules do not hold
    for them. Each layer is read by itself: a list in the config counts by its entry for the layer.
    """

    heads: Rule | None = None
    kv_heads: Rule | None = None
    head_dim: Rule | None = None
    value_dim: Rule | None = None
    sinks: Rule = False
    """One learned logit per query head."""
    values_are_keys: Rule = False
    """The checkpoint has one matrix for keys and values."""


class AttentionLayers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which layers attend to what."""

    field: str | list[str] = "layer_types"
    """The config field, or the first present of several, that has an entry (in a string: a letter)
    for every layer, where it is there; else the rules below.
    """
    names: dict[str, LayerKind] = msgspec.field(default_factory=lambda: dict(LAYER_NAMES))
    every: Rule = 0
    """Every n-th layer (the n-th, the 2n-th, ...) is of `kind`; 0: none."""
    offset: Rule | None = None
    """The first layer of `kind`, counted from 0; the n-th unless given."""
    kind: LayerKind = "full"
    rest: LayerKind = "full"
    flags: str = ""
    """A config field with one number per layer: 0 means `kind`, anything else `rest`."""
    numbers: str = ""
    """A config field with the numbers of the layers that are of `kind`, instead of `every`."""
    numbered_from: int = 0
    """The number of the first layer in `numbers`."""
    first_full: Rule = 0
    """So many layers at the beginning see everything."""
    alone: bool = False
    """A layer of kind "none" is an MLP or experts, any other has neither (Nemotron-H). Without a
    `field`, the rules say which is which (Mamba: every layer has a state).
    """
    ffns: str = ""
    """A config field with one number per layer: 0 means that it has no FFN."""
    window: Rule = 0
    enabled: Rule = True
    """Whether the window is in use at all."""


class Experts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A mixture of experts in place of the MLP."""

    experts: Rule
    topk: Rule
    groups: Rule = 1
    topk_groups: Rule = 1
    """A token chooses so many of the groups first, and its experts in them."""
    width: Rule
    latent: Rule = 0
    """Tokens are projected to this width before the experts, and back behind them."""
    latent_norm: Rule = False
    """What the experts give back is normed in front of that."""
    shared_width: Rule = 0
    shared_count: Rule = 1
    """Shared experts of that width each; they act as one of the whole width."""
    shared_gate: bool = False
    router_bias: Rule = False
    router_scales: bool = False
    """The router has a scale for each element that it reads and for each expert."""
    beside_dense: Rule = False
    """Layers with experts have a dense MLP, too."""
    beside_norms: int = 3
    """Norms of such layers: behind the dense MLP, in front of the experts, and behind them."""
    hashed: Rule = 0
    """So many layers at the beginning choose a token's experts by its id."""
    zero: Rule = 0
    """Experts more that return a token as it is: the router scores them, nothing is computed."""
    expert_bias: bool = False
    first: Rule = 0
    """So many layers at the beginning are dense."""
    step: Rule = 1
    phase: int = 1
    """Layer i is sparse when (i + phase) is a multiple of `step`."""
    offset: Rule | None = None
    """The first sparse layer of each `step`, counted from 0, instead of `phase`."""
    one_is_dense: bool = False
    """A single expert is a dense MLP."""
    dense: str = ""
    """A config field that lists dense layers."""
    last: str = ""
    """A config field with the number of the last sparse layer; negative: counted from the end, as
    in Python.
    """
    listed: str = ""
    """A config field that lists the sparse layers, instead of `first`, `step`, `last` and `dense`.
    """
    flags: str = ""
    """A config field that may have a list with one number per layer: 0 means dense, anything else
    sparse.
    """
    entries: list[str] = []
    """Entries of the layers' `field` that have experts, instead of all these."""


class Latent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Multi-head latent attention."""

    q_rank: Rule
    kv_rank: Rule
    nope_dim: Rule
    rope_dim: Rule
    v_dim: Rule


class Compressed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Attention of one KV head to the last tokens and to a compressed context."""

    q_rank: Rule
    dim: Rule
    rope_dim: Rule
    out_groups: Rule
    """Groups of heads, whose outputs are projected to `out_rank` each."""
    out_rank: Rule


class Sparse(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An indexer that chooses the tokens which latent attention sees."""

    heads: Rule
    dim: Rule
    topk: Rule
    block: Rule = 0
    """Tokens of a block, where `topk` counts blocks; layers of the kind "block_sparse" have it."""
    field: str = ""
    """A config field with an entry for every layer, of which those that are `shared` use an earlier
    layer's choice.
    """
    shared: str = "shared"


class Linear(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Layers that keep a state: gated delta nets, Kimi delta attention, lightning attention, which
    has no convolution, short convolutions, or state spaces.
    """

    kind: LinearKind = "delta"

    key_heads: Rule
    key_dim: Rule
    value_heads: Rule
    value_dim: Rule
    conv_kernel: Rule = 0
    chunk: Rule = 64
    """Tokens of a prompt from one state that kernels hand out to the next."""
    conv_bias: Rule = False
    bias: Rule = False
    """Of the projections."""
    norm: Literal["head", "whole"] = "head"
    """The output's norm has a weight for every element of one head, or of all."""
    norm_if: Rule = True
    gate_rank: Rule = 0
    """Of Kimi delta attention: rank of the projections to decays and the output's gate; of Mamba-1
    of that to the step.
    """
    full_gate: Rule = False
    """Of Kimi delta attention: the output's gate is one matrix."""
    step_norm: bool = False
    """Of Mamba-1: the step's latent, B and C are normed."""


class Inputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Embeddings that every layer gets, from a table of their own."""

    width: Rule
    """For one layer; 0: there are none."""
    rows: Rule = "vocab_size"


class Adjusted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A width of the dense MLP that is two thirds of the config's, times a factor, rounded up to a
    multiple (LFM2).
    """

    adjusted_if: Rule
    factor: str
    """A config field with a number; absent: 1."""
    multiple: Rule


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One family: what its config.json means. Defaults are those of the Llama architecture."""

    model_types: list[str]
    source: str
    """Where the description comes from."""
    renamed: dict[str, str] = {}
    """Config fields by the names that other families have for them: `{"hidden_size": "n_embd"}`."""
    defaults: dict[str, Any] = {}
    """Config fields that published files of the family leave out, with their values."""
    expects: dict[str, Rule] = {}
    """Config fields that must have this value where they are there: other models of the type are
    not described.
    """
    multimodal: bool = False
    """The config is that of a wrapper, with the text part's fields beside those of the encoders."""
    kv_heads: Rule = msgspec.field(default_factory=lambda: KV_HEADS)
    head_dim: Rule = "head_dim"
    """0 or absent: hidden_size / num_attention_heads."""
    heads: Rule = "num_attention_heads"
    value_dim: Rule = 0
    """Of a value head; 0: as head_dim."""
    gate_dim: Rule = 0
    """Numbers of each head that a projection of its own makes, to gate the attention's output."""
    shapes: dict[LayerKind, Heads] = {}
    """Heads of the layers of some kinds, instead of `heads`, `kv_heads`, `head_dim`, `value_dim`.
    """
    kv_sharing: Rule = 0
    """So many layers at the end attend to the keys and values of the last layer of their kind
    before them.
    """
    wide_ffn: Rule = 1
    """Layers without keys and values of their own have a dense MLP so many times as wide."""
    value_norm: bool = False
    """Values are normed, without a weight."""
    intermediate: Rule = msgspec.field(default_factory=lambda: INTERMEDIATE)
    adjusted: Adjusted | None = None
    gated_mlp: bool = True
    qkv_bias: Rule = False
    o_bias: Rule = False
    mlp_bias: Rule = False
    lm_head_bias: Rule = False
    query_rank: Rule = 0
    """Queries come from a latent of this width, which one matrix makes together with the keys and
    values (multi-matrix factorisation attention); 0: from the hidden state.
    """
    qk_norm: Literal["none", "head", "whole", "weightless"] = "none"
    """One weight per element of a head, of all heads, or none at all."""
    qk_norm_if: Rule = True
    layer_norm: bool = False
    """LayerNorm instead of RMSNorm."""
    norm_bias: Rule = True
    """Whether a LayerNorm has a bias."""
    norm_weight: Rule = True
    """Whether norms of the hidden state have a weight (those of OLMo 1 have none)."""
    embedding_norm: bool = False
    """The embedding is normed in front of the first layer."""
    norms_per_layer: Rule = 2
    """1: attention and MLP read the same norm; 4: also behind both."""
    parallel: Rule = False
    """Attention and MLP both read the layer's input, and their outputs are added to it."""
    one_sum: bool = False
    """Of such layers: tensor-parallel ranks add attention and MLP up before one all-reduce, not
    each by its own.
    """
    rotary: Rule = True
    """Queries and keys are rotated by their position."""
    position_rows: Rule = 0
    """Rows of a learned table of positions, which is added to the embedding."""
    position_offset: int = 0
    """More rows than positions (OPT)."""
    tie_word_embeddings: bool = False
    """Where the config is silent."""
    attention_gate: Rule = False
    attention_sinks: bool = False
    context_scaled: bool = False
    """max_position_embeddings already counts the RoPE scaling."""
    layer_inputs: Inputs | None = None
    sublayers: int = 1
    """Layers with attention and FFN that one layer of the config has."""
    layers: AttentionLayers | None = None
    experts: Experts | None = None
    latent: Latent | None = None
    compressed: Compressed | None = None
    indexer: Sparse | None = None
    residuals_every: Rule = 0
    """A residual is kept every so many layers, and each half layer attends to those before it."""
    streams: Rule = 1
    """Residual streams (hyper-connections)."""
    mixed_streams: bool = True
    """Streams are mixed behind each half layer."""
    kv_cache_dtype: str = ""
    """Of the KV cache where "auto" is not as the activations."""
    linear: Linear | None = None
    notes: list[str] = []
    path: str = ""
    """Set by the loader."""


@cache
def _stems() -> frozenset[str]:
    """The names of the bundled descriptions."""
    return frozenset(path.stem for path in FAMILIES_DIR.glob("*.json"))


@cache
def _bundled() -> dict[str, Path]:
    """model_type -> file."""
    return {
        name: path
        for path in sorted(FAMILIES_DIR.glob("*.json"))
        for name in msgspec.json.decode(input_files.read_bytes(path))["model_types"]
    }


def family_types() -> tuple[str, ...]:
    """Every model_type that a bundled family describes, sorted."""
    return tuple(sorted(_bundled()))


def find_family(read: Reader, folder: Path | None = None) -> Family:
    """The family of a config: `family.json` beside it (in `folder`), else the bundled one of its
    model_type.

    Raises NotYetError for an unknown model_type, saying how to describe it; InputError for a
    malformed description.
    """
    model_type = read.text("model_type")
    own = folder / FAMILY_FILE if folder is not None else None
    if own is not None and input_files.is_file(own):
        family = load_family(own)
        if model_type not in family.model_types:
            raise InputError(
                f"{own}: model_types {family.model_types} does not have the "
                f'"{shown(model_type)[1:-1]}" of'
                f" {read.source}; add it"
            )
        return family
    if model_type in _stems():  # as most are called: the other files are not read
        family = load_family(FAMILIES_DIR / f"{model_type}.json")
        if model_type in family.model_types:
            return family
    path = _bundled().get(model_type)
    if path is None:
        raise NotYetError(_unknown(read, model_type))
    return load_family(path)


@cache
def _read(path: Path, changed_ns: int) -> Family:
    del changed_ns  # part of the key: a file that was edited is read again
    try:
        return msgspec.json.decode(input_files.read_bytes(path), type=Family)
    except msgspec.DecodeError as error:
        raise InputError(
            f"{path}: {error}; see the descriptions in {LOCATION} and docs/reference/models.md",
            file=str(path),
        ) from None


def load_family(path: Path) -> Family:
    """One description; InputError with the place of the first thing that is wrong."""
    input_files.note(path)  # `_read` may know it already
    try:
        family = _read(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); give a readable {FAMILY_FILE}",
            file=str(path),
        ) from None
    shown_path = f"{LOCATION}/{path.name}" if path.parent == FAMILIES_DIR else str(path)
    return msgspec.structs.replace(family, path=shown_path)


def _unknown(read: Reader, model_type: str) -> str:
    """What to do about a family that nobody described; the nearest known one by the fields that
    both have.
    """
    known = family_types()
    close = nearest(model_type, known) or _similar(read.fields)
    return (
        f'{read.source}: field "model_type" is {shown(model_type)}, a family that is not '
        f"described{close}; put a"
        f" {FAMILY_FILE} beside the config.json (docs/reference/models.md); described are those "
        f"in {LOCATION}"
    )


MARKS = {
    "deepseek_v3": ("kv_lora_rank",),
    "qwen3_next": ("linear_num_key_heads",),
    "gemma3_text": ("sliding_window_pattern",),
    "qwen3_moe": ("num_experts_per_tok", "moe_intermediate_size"),
    "mixtral": ("num_local_experts",),
    "llama": (
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_hidden_layers",
        "vocab_size",
    ),
}
"""Fields by which a reader of configs recognises an architecture; the first whose fields are all
there.
"""


def _similar(fields: Fields) -> str:
    for name, marks in MARKS.items():
        if all(fields.get(mark) for mark in marks):
            return f' (its fields look like "{name}")'
    return ""
