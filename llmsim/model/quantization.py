"""What a checkpoint's quantization_config says: the weights' type, their scales, and which parts are left alone."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from llmsim.config.errors import InputError, NotYetError
from llmsim.model.fields import Reader, shown

PARTS = {
    "attention": ("self_attn", "linear_attn", "attention"),
    "mlp": ("mlp",),
    "shared": ("shared_expert",),
    "experts": ("experts",),
}
"""Parts of a block, and the words that name them in a checkpoint's list of unquantised modules."""
OTHERS = ("lm_head", "embed_tokens", "router", "norm", "gate", "visual", "vision", "multi_modal", "mtp", "e_score")
"""Modules that are wide in every model here, whatever a list says."""

KNOWN = "fp8, fbgemm_fp8, int8, mxfp4, modelopt (FP8, NVFP4), compressed-tensors, awq, gptq"


@dataclass(frozen=True)
class Quantization:
    """How the linear layers are stored; `block` rows x columns share a scale of `scale_bits`."""

    weight_dtype: str
    block: tuple[int, int] | None = None
    scale_bits: int = 32
    plain_parts: frozenset[str] = frozenset()
    kv_cache_dtype: str = ""
    notes: tuple[str, ...] = ()


def read_quantization(read: Reader, dtype: str, num_layers: int) -> Quantization:
    """The weights of a config.json; unquantised without a quantization_config.

    Raises NotYetError for a method that vLLM does not run as 4 or 8 bit weights here, InputError for a bad field.
    """
    config = read.table("quantization_config")
    if config is None:
        return Quantization(dtype)
    method = config.text("quant_method", "modelopt" if config.present("quant_algo") else None)
    block = config.counts("weight_block_size")
    if block and (len(block) != len(("rows", "columns")) or 0 in block):
        raise InputError(f'{config.source}: field "weight_block_size" is {list(block)}; it must be two integers >= 1')
    found = _by_method(config, method)
    if block:
        found = Quantization(found.weight_dtype, (block[0], block[1]), 32)
    plain, notes = _plain_parts(config, num_layers)
    kv = "fp8" if _is_fp8_kv(config) else ""
    return Quantization(found.weight_dtype, found.block, found.scale_bits, plain, kv, notes)


def _by_method(config: Reader, method: str) -> Quantization:
    if method in ("fp8", "fbgemm_fp8"):
        return Quantization("fp8")
    if method == "int8":
        return Quantization("int8")
    if method == "mxfp4":  # OCP Microscaling: 32 elements share an 8-bit exponent
        return Quantization("fp4", (1, 32), 8)
    if method in ("awq", "gptq"):
        if config.count("bits", "w_bit", default=4) != 4:
            raise NotYetError(
                f'{config.source}: field "bits" is not 4; of {method} this version runs 4-bit weights only'
            )
        group = config.count("group_size", "q_group_size", default=128)
        return Quantization("int4", (1, group), 16 + 4)  # fp16 scale and 4-bit zero point
    if method == "modelopt":
        algorithm = config.text("quant_algo").upper()
        if algorithm == "FP8":
            return Quantization("fp8")
        if algorithm == "NVFP4":  # 16 elements share an fp8 scale
            return Quantization("fp4", (1, config.count("group_size", default=16)), 8)
        raise NotYetError(
            f'{config.source}: field "quant_algo" is {shown(algorithm)}; of modelopt this version runs FP8 and NVFP4'
        )
    if method == "compressed-tensors":
        return _compressed(config)
    raise NotYetError(
        f'{config.source}: field "quant_method" is {shown(method)}, which this version does not run; it runs {KNOWN}'
    )


def _compressed(config: Reader) -> Quantization:
    groups = config.table("config_groups")
    names = sorted(groups.fields) if groups is not None else []
    first = groups.table(names[0]) if groups is not None and names else None
    weights = first.table("weights") if first is not None else None
    if weights is None:
        raise InputError(
            f'{config.source}: field "config_groups" has no "weights"; they say how the weights are stored'
        )
    bits, kind = weights.count("num_bits"), weights.text("type", "int")
    size = weights.fields.get("group_size")
    group = weights.count("group_size") if size not in (None, -1) else 0
    block = (1, group) if group else None
    if bits == 8:
        return Quantization("fp8" if kind == "float" else "int8", block, 16)
    if bits == 4:
        return Quantization("fp4", block, 8) if kind == "float" else Quantization("int4", block, 16)
    raise NotYetError(f'{weights.source}: field "num_bits" is {bits}; this version runs 4 and 8')


def _is_fp8_kv(config: Reader) -> bool:
    scheme = config.fields.get("kv_cache_scheme") or config.fields.get("kv_cache_quant_algo")
    if isinstance(scheme, dict):
        return scheme.get("num_bits") == 8
    return isinstance(scheme, str) and scheme.upper() == "FP8"


def _plain_parts(config: Reader, num_layers: int) -> tuple[frozenset[str], tuple[str, ...]]:
    """Parts that no layer quantises; a note where only some layers are left alone."""
    listed: list[str] = []
    for key in ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers"):
        names = config.fields.get(key) or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError(f'{config.source}: field "{key}" is {shown(names)}; it must be a list of module names')
        listed += names
    plain = set()
    some = []
    for part, layers in _layers_by_part(listed).items():
        if layers is None or len(layers) >= num_layers:
            plain.add(part)
        elif layers:
            some.append(f"{part} of {len(layers)} layers")
    note = f"{config.source} leaves {' and '.join(some)} unquantised; they are counted as quantised" if some else ""
    return frozenset(plain), (note,) if note else ()


def _layers_by_part(names: Sequence[str]) -> dict[str, set[int] | None]:
    """Part -> the layers whose module is named, None: a pattern that names all."""
    found: dict[str, set[int] | None] = {part: set() for part in PARTS}
    for name in names:
        word = name.removeprefix("re:").replace("\\", "")
        part = _part_of(word)
        if part is None:
            continue
        number = re.search(r"layers\.(\d+)(?:\.|$)", word)
        layers = found[part]
        if number is None:
            found[part] = None
        elif layers is not None:
            layers.add(int(number.group(1)))
    return found


def _part_of(name: str) -> str | None:
    """The most specific part that a module's name is or contains; None for what is never quantised."""
    last = re.split(r"[.*$]+", name.rstrip(".*$"))[-1]
    if any(word in last for word in OTHERS) or any(word in name for word in ("visual", "vision", "mtp")):
        return None
    for part in ("shared", "experts", "attention", "mlp"):
        if any(word in name for word in PARTS[part]):
            return part
    return None
