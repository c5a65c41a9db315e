"""Architecture descriptions: one JSON file for each family of models says how its config.json is to be read.

A rule in such a file is a constant, the name of a config field, or a list of field names of which the first present one
counts, with a constant last as the default: `["intermediate_size", "ffn_dim"]`, `["attention_bias", false]`.
"""

from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from llmsim.config.errors import InputError, NotYetError, nearest
from llmsim.model.fields import MAX_COUNT, Fields, Reader, shown
from llmsim.model.types import LayerKind

FAMILIES_DIR = Path(__file__).resolve().parent.parent / "presets" / "families"
LOCATION = "llmsim/presets/families"
FAMILY_FILE = "family.json"
"""Beside a config.json: the description of a family that is not bundled."""

LAYER_NAMES: dict[str, LayerKind] = {
    "full_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
}
"""What transformers calls them in `layer_types`."""

Rule = bool | int | str | list[bool | int | str]


INTERMEDIATE: Rule = ["intermediate_size", "ffn_dim"]


class AttentionLayers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which layers attend to what."""

    field: str = "layer_types"
    """The config field that lists every layer, where it is there; else the rules below."""
    names: dict[str, LayerKind] = msgspec.field(default_factory=lambda: dict(LAYER_NAMES))
    every: Rule = 0
    """Every n-th layer (the n-th, the 2n-th, ...) is of `kind`; 0: none."""
    kind: LayerKind = "full"
    rest: LayerKind = "full"
    flags: str = ""
    """A config field with one number per layer: 0 means `kind`, anything else `rest`."""
    first_full: Rule = 0
    """So many layers at the beginning see everything."""
    window: Rule = 0
    enabled: Rule = True
    """Whether the window is in use at all."""


class Experts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A mixture of experts in place of the MLP."""

    experts: Rule
    topk: Rule
    width: Rule
    shared_width: Rule = 0
    shared_count: Rule = 1
    """Shared experts of that width each; they act as one of the whole width."""
    shared_gate: bool = False
    router_bias: Rule = False
    expert_bias: bool = False
    first: Rule = 0
    """So many layers at the beginning are dense."""
    step: Rule = 1
    phase: int = 1
    """Layer i is sparse when (i + phase) is a multiple of `step`."""
    dense: str = ""
    """A config field that lists dense layers."""
    listed: str = ""
    """A config field that lists the sparse layers, instead of `first`, `step` and `dense`."""


class Latent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Multi-head latent attention."""

    q_rank: Rule
    kv_rank: Rule
    nope_dim: Rule
    rope_dim: Rule
    v_dim: Rule


class Linear(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Gated delta net layers."""

    key_heads: Rule
    key_dim: Rule
    value_heads: Rule
    value_dim: Rule
    conv_kernel: Rule


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One family: what its config.json means. Defaults are those of the Llama architecture."""

    model_types: list[str]
    source: str
    """Where the description comes from."""
    defaults: dict[str, Any] = {}
    """Config fields that published files of the family leave out, with their values."""
    intermediate: Rule = msgspec.field(default_factory=lambda: INTERMEDIATE)
    gated_mlp: bool = True
    qkv_bias: Rule = False
    o_bias: Rule = False
    mlp_bias: Rule = False
    lm_head_bias: Rule = False
    qk_norm: Literal["none", "head", "whole", "weightless"] = "none"
    """One weight per element of a head, of all heads, or none at all."""
    qk_norm_if: Rule = True
    layer_norm: bool = False
    """LayerNorm (with a bias) instead of RMSNorm."""
    norms_per_layer: int = 2
    tie_word_embeddings: bool = False
    """Where the config is silent."""
    attention_gate: Rule = False
    attention_sinks: bool = False
    context_scaled: bool = False
    """max_position_embeddings already counts the RoPE scaling."""
    layers: AttentionLayers | None = None
    experts: Experts | None = None
    latent: Latent | None = None
    linear: Linear | None = None
    notes: list[str] = []
    path: str = ""
    """Set by the loader."""


@cache
def _bundled() -> dict[str, Path]:
    """model_type -> file."""
    return {
        name: path
        for path in sorted(FAMILIES_DIR.glob("*.json"))
        for name in msgspec.json.decode(path.read_bytes())["model_types"]
    }


def family_types() -> tuple[str, ...]:
    """Every model_type that a bundled family describes, sorted."""
    return tuple(sorted(_bundled()))


def find_family(read: Reader, folder: Path | None = None) -> Family:
    """The family of a config: `family.json` beside it (in `folder`), else the bundled one of its model_type.

    Raises NotYetError for an unknown model_type, saying how to describe it; InputError for a malformed description.
    """
    model_type = read.text("model_type")
    own = folder / FAMILY_FILE if folder is not None else None
    if own is not None and own.is_file():
        family = load_family(own)
        if model_type not in family.model_types:
            raise InputError(
                f'{own}: model_types {family.model_types} does not have the "{shown(model_type)[1:-1]}" of'
                f" {read.source}; add it"
            )
        return family
    path = _bundled().get(model_type)
    if path is None:
        raise NotYetError(_unknown(read, model_type))
    return load_family(path)


@cache
def _read(path: Path, changed_ns: int) -> Family:
    del changed_ns  # part of the key: a file that was edited is read again
    try:
        return msgspec.json.decode(path.read_bytes(), type=Family)
    except msgspec.DecodeError as error:
        raise InputError(f"{path}: {error}; see the descriptions in {LOCATION} and docs/models.md") from None


def load_family(path: Path) -> Family:
    """One description; InputError with the place of the first thing that is wrong."""
    try:
        family = _read(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a readable {FAMILY_FILE}") from None
    shown_path = f"{LOCATION}/{path.name}" if path.parent == FAMILIES_DIR else str(path)
    return msgspec.structs.replace(family, path=shown_path)


def _unknown(read: Reader, model_type: str) -> str:
    """What to do about a family that nobody described; the nearest known one by the fields that both have."""
    known = family_types()
    close = nearest(model_type, known) or _similar(read.fields)
    return (
        f'{read.source}: field "model_type" is {shown(model_type)}, a family that is not described{close}; put a'
        f" {FAMILY_FILE} beside the config.json (docs/models.md); described are those in {LOCATION}"
    )


MARKS = {
    "deepseek_v3": ("kv_lora_rank",),
    "qwen3_next": ("linear_num_key_heads",),
    "gemma3_text": ("sliding_window_pattern",),
    "qwen3_moe": ("num_experts_per_tok", "moe_intermediate_size"),
    "mixtral": ("num_local_experts",),
    "llama": ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size"),
}
"""Fields by which a reader of configs recognises an architecture; the first whose fields are all there."""


def _similar(fields: Fields) -> str:
    for name, marks in MARKS.items():
        if all(fields.get(mark) for mark in marks):
            return f' (its fields look like "{name}")'
    return ""


class Rules:
    """Evaluates the rules of a family on one config; errors name the config's field. Read only."""

    def __init__(self, read: Reader) -> None:
        self.read = read

    def _find(self, rule: Rule) -> tuple[str | None, bool | int | None]:
        """(field that is there, constant): exactly one of the two, or the first field when nothing is."""
        choices = rule if isinstance(rule, list) else [rule]
        for choice in choices:
            if not isinstance(choice, str):
                return None, choice
            if self.read.present(choice):
                return choice, None
        return str(choices[0]), None

    def count(self, rule: Rule, *, least: int = 1, most: int = MAX_COUNT) -> int:
        """An integer of at least `least`."""
        field, constant = self._find(rule)
        if field is None:
            return int(constant or 0)
        if least == 0 and self.read.fields.get(field) == 0:
            return 0
        return self.read.count(field, most=most)

    def optional(self, rule: Rule) -> int:
        """An integer that may be 0, absent or null; those are 0."""
        field, constant = self._find(rule)
        if field is None:
            return int(constant or 0)
        return self.read.count(field) if self.read.fields.get(field) else 0

    def flag(self, rule: Rule) -> bool:
        """A boolean."""
        field, constant = self._find(rule)
        return bool(constant) if field is None else self.read.flag(field, False)
