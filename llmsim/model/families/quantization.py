"""What a checkpoint's quantization_config says: the weights' type, their scales, and which parts
are left alone.
"""

from msgspec import Struct
from msgspec.structs import replace

from llmsim.config.errors import InputError, NotYetError
from llmsim.model.families.fields import Reader, shown
from llmsim.model.families.quantized_modules import PARTS, Layers, layers_by_part
from llmsim.model.types import WeightFormat

MODELOPT = {
    "FP8": WeightFormat("fp8"),
    "FP8_PER_CHANNEL_PER_TOKEN": WeightFormat("fp8"),
    "FP8_PB_WO": WeightFormat("fp8", (128, 128), 32),
    "MXFP8": WeightFormat("fp8", (1, 32), 8),
    "NVFP4": WeightFormat("fp4", (1, 16), 8),
    "W4A16_NVFP4": WeightFormat("fp4", (1, 16), 8),
}
"""`quant_algo` of ModelOpt -> how it stores weights; the group of the NVFP4 ones may be another
(`group_size`).
"""
MODELOPT_FIXED = "FP8"
"""Whose checkpoints hold one scale for the inputs of each matrix."""
MXFP4 = WeightFormat("fp4", (1, 32), 8)
"""OCP Microscaling: 32 elements share an 8-bit exponent."""
NVFP4 = "NVFP4"
EXPERT_DTYPE = "expert_dtype"
MIXED = "MIXED_PRECISION"
KNOWN = (
    f"fp8, fbgemm_fp8, int8, mxfp4, modelopt ({', '.join(MODELOPT)}, {MIXED}), "
    "compressed-tensors, awq, gptq"
)
MAIN_PARTS = ("experts", "mlp", "attention", "linear", "shared", "attention_out")
"""Of several formats of weights that of the first of these parts is the model's `weight_dtype`."""

_WIDE_ACTIVATIONS = (
    "{} has 4-bit weights with 16-bit activations (W4A16_NVFP4): their time is that of kernels "
    "with 4-bit activations"
)


class Quantization(Struct, frozen=True):
    """How the linear layers are stored; `block` rows x columns share a scale of `scale_bits`."""

    weight_dtype: str
    block: tuple[int, int] | None = None
    scale_bits: int = 32
    plain_parts: frozenset[str] = frozenset()
    part_formats: tuple[tuple[str, WeightFormat], ...] = ()
    kv_cache_dtype: str = ""
    fixed_input_scales: bool = False
    notes: tuple[str, ...] = ()


def read_quantization(read: Reader, dtype: str, layers: Layers) -> Quantization:
    """The weights of a config.json; unquantised without a quantization_config. `layers` says which
    have which part.

    Raises NotYetError for a method or algorithm that does not run here as 4 or 8 bit weights,
    InputError for a bad field.
    """
    config = read.table("quantization_config")
    if config is None:
        return Quantization(dtype)
    method = config.text("quant_method", "modelopt" if config.present("quant_algo") else None)
    algorithm = config.fields.get("quant_algo")
    if isinstance(algorithm, str) and algorithm.upper() == MIXED:
        return _mixed(config, layers)
    block = config.counts("weight_block_size")
    if block and (len(block) != len(("rows", "columns")) or 0 in block):
        raise InputError(
            f'{config.source}: field "weight_block_size" is {list(block)}; it must be two '
            "integers >= 1"
        )
    found = _by_method(config, method)
    if block:
        found = Quantization(found.weight_dtype, (block[0], block[1]), 32)  # one for each token
    plain, notes = _plain_parts(config, layers)
    kv, own = _kv_cache_dtype(config), _expert_format(read, config)
    return replace(found, plain_parts=plain, part_formats=own, kv_cache_dtype=kv, notes=notes)


def _expert_format(read: Reader, config: Reader) -> tuple[tuple[str, WeightFormat], ...]:
    """The format of the experts where the config states another one for them (DeepSeek-V4)."""
    if not read.present(EXPERT_DTYPE):
        return ()
    dtype = read.text(EXPERT_DTYPE)
    if dtype not in ("fp4", "fp8"):
        raise NotYetError(
            f'{read.source}: field "{EXPERT_DTYPE}" is {shown(dtype)}; this version runs fp4 and '
            "fp8"
        )
    if dtype == "fp8":
        return ()
    algorithm = config.text("moe_quant_algo", "")
    return (("experts", MODELOPT[NVFP4] if algorithm.upper() == NVFP4 else MXFP4),)


def _by_method(config: Reader, method: str) -> Quantization:
    if method in ("fp8", "fbgemm_fp8"):
        fixed = config.fields.get("activation_scheme") == "static"
        return Quantization("fp8", fixed_input_scales=fixed)
    if method == "int8":
        return Quantization("int8")
    if method == "mxfp4":
        return Quantization(MXFP4.dtype, MXFP4.block, MXFP4.scale_bits)
    if method in ("awq", "gptq"):
        if config.count("bits", "w_bit", default=4) != 4:
            raise NotYetError(
                f'{config.source}: field "bits" is not 4; of {method} this version runs 4-bit '
                "weights only"
            )
        group = config.count("group_size", "q_group_size", default=128)
        return Quantization("int4", (1, group), 16 + 4)  # fp16 scale and 4-bit zero point
    if method == "modelopt":
        form = _modelopt_format(config, config.text("quant_algo"))
        fixed = config.text("quant_algo").upper() == MODELOPT_FIXED
        return Quantization(form.dtype, form.block, form.scale_bits, fixed_input_scales=fixed)
    if method == "compressed-tensors":
        return _compressed(config)
    raise NotYetError(
        f'{config.source}: field "quant_method" is {shown(method)}, which this version does not '
        f"run; it runs {KNOWN}"
    )


def _modelopt_format(config: Reader, algorithm: str) -> WeightFormat:
    """The format of one ModelOpt algorithm; NotYetError for any other."""
    form = MODELOPT.get(algorithm.upper())
    if form is None:
        raise NotYetError(
            f'{config.source}: field "quant_algo" is {shown(algorithm)}; of modelopt this '
            "version runs "
            f"{', '.join(MODELOPT)} and {MIXED}"
        )
    if form.dtype == "fp4":
        return WeightFormat("fp4", (1, config.count("group_size", default=16)), form.scale_bits)
    return form


def _mixed(config: Reader, layers: Layers) -> Quantization:
    """ModelOpt's MIXED_PRECISION: `quantized_layers` gives an algorithm for each module; what it
    leaves out is wide.

    NotYetError where the modules of one part have different algorithms.
    """
    listed = config.table("quantized_layers")
    if listed is None or not listed.fields:
        raise InputError(
            f'{config.source}: field "quantized_layers" is missing; with quant_algo {MIXED} it '
            "says how each module "
            "is stored"
        )
    named: dict[str, list[str]] = {}
    formats: dict[str, WeightFormat] = {}
    for name in listed.fields:
        module = listed.table(name)
        if module is None:
            raise InputError(
                f'{listed.source}: field "{name}" is null; it must be an object with a "quant_algo"'
            )
        algorithm = module.text("quant_algo").upper()
        form = _modelopt_format(module, algorithm)
        if formats.setdefault(algorithm, form) != form:
            raise NotYetError(
                f'{module.source}: field "group_size" differs between modules of one algorithm'
            )
        named.setdefault(algorithm, []).append(name)
    found: dict[str, str] = {}
    covered: dict[str, frozenset[int]] = {}
    notes: list[str] = []
    for algorithm, names in named.items():
        by_part, unknown = layers_by_part(names, layers)
        notes += _unknown_modules(config, unknown)
        for part, numbers in by_part.items():
            if not numbers:
                continue
            other = found.setdefault(part, algorithm)
            if other != algorithm:
                raise NotYetError(
                    f'{listed.source}: modules of "{part}" have the algorithms {other} and '
                    f"{algorithm}; this version "
                    "runs one for each part of a layer"
                )
            covered[part] = numbers
    return _of_parts(
        config, layers, {part: formats[one] for part, one in found.items()}, covered, (found, notes)
    )


def _of_parts(
    config: Reader,
    layers: Layers,
    formats: dict[str, WeightFormat],
    covered: dict[str, frozenset[int]],
    said: tuple[dict[str, str], list[str]],
) -> Quantization:
    """The quantisation of parts with formats of their own; `said`: their algorithms, and what is
    noted already.
    """
    if not formats:
        raise NotYetError(
            f'{config.source}: field "quantized_layers" names no module that this version knows'
        )
    algorithms, notes = said
    main = next(formats[part] for part in MAIN_PARTS if part in formats)
    plain = frozenset(part for part in PARTS if layers[part] and part not in formats)
    some = [
        f"{part} in {len(layers[part] - covered[part])} layers"
        for part in covered
        if layers[part] - covered[part]
    ]
    if some:
        notes = [
            *notes,
            (
                f"{config.source} leaves {' and '.join(some)} unquantised; they are counted as "
                "quantised"
            ),
        ]
    if any(algorithm.startswith("W4A16") for algorithm in algorithms.values()):
        notes = [*notes, _WIDE_ACTIVATIONS.format(config.source)]
    return Quantization(
        weight_dtype=main.dtype,
        block=main.block,
        scale_bits=main.scale_bits,
        plain_parts=plain,
        part_formats=tuple((part, form) for part, form in formats.items() if form != main),
        kv_cache_dtype=_kv_cache_dtype(config),
        notes=tuple(notes),
    )


def _compressed(config: Reader) -> Quantization:
    groups = config.table("config_groups")
    names = sorted(groups.fields) if groups is not None else []
    first = groups.table(names[0]) if groups is not None and names else None
    weights = first.table("weights") if first is not None else None
    if weights is None:
        raise InputError(
            f'{config.source}: field "config_groups" has no "weights"; they say how the weights '
            "are stored"
        )
    bits, kind = weights.count("num_bits"), weights.text("type", "int")
    size = weights.fields.get("group_size")
    group = weights.count("group_size") if size not in (None, -1) else 0
    block = (1, group) if group else None
    if bits == 8:
        inputs = first.table("input_activations") if first is not None else None
        fixed = inputs is not None and inputs.fields.get("dynamic") is False
        dtype = "fp8" if kind == "float" else "int8"
        return Quantization(dtype, block, 16, fixed_input_scales=fixed)
    if bits == 4:
        return Quantization("fp4", block, 8) if kind == "float" else Quantization("int4", block, 16)
    raise NotYetError(f'{weights.source}: field "num_bits" is {bits}; this version runs 4 and 8')


def _kv_cache_dtype(config: Reader) -> str:
    """The element type that a checkpoint gives its KV cache; empty if it gives none. NotYetError
    unless it is fp8.
    """
    key = "kv_cache_scheme" if config.fields.get("kv_cache_scheme") else "kv_cache_quant_algo"
    scheme = config.fields.get(key)
    if not scheme or (isinstance(scheme, str) and scheme.upper() == "NONE"):
        return ""
    eight_bits = isinstance(scheme, dict) and scheme.get("num_bits") == 8
    if eight_bits or (isinstance(scheme, str) and scheme.upper() == "FP8"):
        return "fp8"
    raise NotYetError(
        f'{config.source}: field "{key}" is {shown(scheme)}; this version runs FP8, or none'
    )


def _plain_parts(config: Reader, layers: Layers) -> tuple[frozenset[str], tuple[str, ...]]:
    """Parts that no layer quantises; notes where only some layers are left alone, and of names that
    are not known.
    """
    listed: list[str] = []
    for key in ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers"):
        names = config.fields.get(key) or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError(
                f'{config.source}: field "{key}" is {shown(names)}; it must be a list of module '
                "names"
            )
        listed += names
    by_part, unknown = layers_by_part(listed, layers)
    plain = frozenset(
        part for part, numbers in by_part.items() if numbers and numbers >= layers[part]
    )
    some = [
        f"{part} of {len(numbers)} layers"
        for part, numbers in by_part.items()
        if numbers and part not in plain
    ]
    notes = _unknown_modules(config, unknown)
    if some:
        notes.append(
            f"{config.source} leaves {' and '.join(some)} unquantised; they are counted as "
            "quantised"
        )
    return plain, tuple(notes)


def _unknown_modules(config: Reader, names: list[str]) -> list[str]:
    """A note of the names that stand for no part of a layer here."""
    if not names:
        return []
    first, more = shown(names[0]), f" and {len(names) - 1} more" if len(names) > 1 else ""
    return [
        (
            f"{config.source} lists the module {first}{more}, which is no known part of a layer "
            "and is passed over"
        )
    ]
