"""Reads the vision tower of a wrapper's config.json: `vision_config`, by its type.

Counts are those of transformers' own modules, without what vLLM leaves out (the pooling head of
SigLIP where `vision_use_head` is false).
"""

import math
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from llmsim.config.errors import InputError
from llmsim.model.families.fields import MAX_LAYERS, Fields, Reader, shown
from llmsim.model.vision import VisionShapes, VisionTower

Read = Callable[[Fields, int], VisionTower]
_SIDE = 2
"""Patches per side that are merged into one token, where the config does not say it."""
_LAYERS = ("depth", "num_hidden_layers")
_SIZES = (
    "embed_dim",
    "hidden_size",
    "in_channels",
    "intermediate_size",
    "num_attention_heads",
    "num_channels",
    "num_heads",
    "num_position_embeddings",
    "out_hidden_size",
    "projector_input_dim",
    "projector_output_dim",
    "spatial_merge_size",
    "temporal_patch_size",
    "vision_output_dim",
)
_MAX_PIXELS = 1 << 20
_MAX_RATIO = 1000


def vision_tower(
    fields: Fields, text_width: int, source: str = "config.json"
) -> VisionTower | None:
    """The tower beside a text part of that hidden size; None: there is none, or its type is not
    described, or its config leaves a size to the engine.

    Raises InputError for a size that no tower can have; `source` names the file.
    """
    config = Reader(fields, source).table("vision_config")
    if config is None:
        return None
    kind = str(config.fields.get("model_type") or fields.get("model_type"))
    read = _TOWERS.get(kind.removesuffix("_vision"))
    if read is None:
        return None
    _check_sizes(config)
    try:
        return read(config.fields, text_width)
    except (KeyError, TypeError):
        return None


def _check_sizes(config: Reader) -> None:
    for key in _SIZES:
        config.count(key, default=1)
    for key in _LAYERS:
        config.count(key, default=1, most=MAX_LAYERS)
    for key in ("image_size", "patch_size"):
        value = config.fields.get(key)
        sides = value if isinstance(value, list) and value else [value]
        for side in sides:
            Reader({key: side}, config.source).count(key, default=1, most=_MAX_PIXELS)
    config.counts("deepstack_visual_indexes")
    ratio = config.fields.get("mlp_ratio", 1)
    number = isinstance(ratio, int | float) and not isinstance(ratio, bool)
    if not number or not math.isfinite(ratio) or not 0 < ratio <= _MAX_RATIO:
        raise InputError(
            f'{config.source}: field "mlp_ratio" is {shown(ratio)}; it must be a number above 0 '
            f"and at most {_MAX_RATIO}"
        )


def _matrices(width: int, inner: int, *, gated: bool = False) -> int:
    """Of one layer: the four of attention, and those of its MLP."""
    return 4 * width * width + (3 if gated else 2) * width * inner


def _biases(width: int, inner: int, *, gated: bool = False) -> int:
    """Of the same."""
    return 4 * width + (2 if gated else 1) * inner + width


def _patch(config: Fields, width: int, frames: int = 1) -> int:
    channels = config.get("num_channels") or config.get("in_channels") or 3
    return int(channels) * frames * int(config["patch_size"]) ** 2 * width


def _positions(config: Fields) -> int:
    sides = config["image_size"], config["patch_size"]
    image, patch = (one[0] if isinstance(one, list) else one for one in sides)
    return (int(image) // int(patch)) ** 2


def _merger(width: int, out: int, config: Fields) -> tuple[int, int]:
    """Two matrices and their biases behind merged patches, and the width of those."""
    merged = width * int(config.get("spatial_merge_size") or _SIDE) ** 2
    return merged * merged + merged + merged * out + out, merged


def _qwen_shapes(
    config: Fields, width: int, inner: int, out: int, *, gated: bool = False, mergers: int = 1
) -> VisionShapes:
    """Of a tower whose patches see their whole image, and are merged side by side."""
    side = int(config.get("spatial_merge_size") or _SIDE)
    merged = width * side**2
    return VisionShapes(
        layers=config["depth"],
        width=width,
        inner=inner,
        gated=gated,
        patch_inputs=_patch(config, 1, config["temporal_patch_size"]),
        patches_per_token=side**2,
        mergers=((merged, merged), (merged, out)) * mergers,
        full_layers=config["depth"],
    )


def _qwen2(config: Fields, text_width: int) -> VisionTower:
    width, layers = config["embed_dim"], config["depth"]
    inner = int(width * config["mlp_ratio"])
    merger, _ = _merger(width, config["hidden_size"], config)
    small = _biases(width, inner) + 4 * width
    patch = _patch(config, width, config["temporal_patch_size"])
    cut = layers * _matrices(width, inner) + merger
    shapes = _qwen_shapes(config, width, inner, config["hidden_size"])
    return VisionTower(cut, layers * small + 2 * width + patch, config["num_heads"], shapes)


def _qwen2_5(config: Fields, text_width: int) -> VisionTower:
    width, inner, layers = config["hidden_size"], config["intermediate_size"], config["depth"]
    merger, _ = _merger(width, config["out_hidden_size"], config)
    small = _biases(width, inner, gated=True) + 2 * width
    patch = _patch(config, width, config["temporal_patch_size"])
    cut = layers * _matrices(width, inner, gated=True) + merger
    shapes = _qwen_shapes(config, width, inner, config["out_hidden_size"], gated=True)
    whole = len(config.get("fullatt_block_indexes") or range(layers))
    side = int(config.get("window_size") or 0) // int(config["patch_size"])
    shapes = replace(shapes, full_layers=whole, window_patches=side**2)
    return VisionTower(cut, layers * small + width + patch, config["num_heads"], shapes)


def _qwen3(config: Fields, text_width: int) -> VisionTower:
    width, inner, layers = config["hidden_size"], config["intermediate_size"], config["depth"]
    merger, merged = _merger(width, config["out_hidden_size"], config)
    deep = len(config["deepstack_visual_indexes"])
    small = _biases(width, inner) + 4 * width
    patch = _patch(config, width, config["temporal_patch_size"]) + width
    norms = 2 * width + deep * 2 * merged + config["num_position_embeddings"] * width
    cut = layers * _matrices(width, inner) + (1 + deep) * merger
    out = config["out_hidden_size"]
    shapes = _qwen_shapes(config, width, inner, out, mergers=1 + deep)
    return VisionTower(cut, layers * small + patch + norms, config["num_heads"], shapes)


def _siglip(config: Fields, text_width: int) -> VisionTower:
    width, inner = config["hidden_size"], config["intermediate_size"]
    layers = config["num_hidden_layers"]
    small = _biases(width, inner) + 4 * width
    embeddings = _patch(config, width) + width + _positions(config) * width
    projector = width * text_width + width
    cut = layers * _matrices(width, inner)
    other = layers * small + embeddings + 2 * width + projector
    return VisionTower(cut, other, config["num_attention_heads"])


def _pixtral(config: Fields, text_width: int) -> VisionTower:
    width, inner = config["hidden_size"], config["intermediate_size"]
    layers = config["num_hidden_layers"]
    merging = width * width * _SIDE**2 + width
    projector = width * text_width + text_width * text_width
    cut = layers * _matrices(width, inner, gated=True) + projector
    other = layers * 2 * width + _patch(config, width) + width + merging
    return VisionTower(cut, other, config["num_attention_heads"])


def _llama4(config: Fields, text_width: int) -> VisionTower:
    width, inner = config["hidden_size"], config["intermediate_size"]
    layers = config["num_hidden_layers"]
    small = _biases(width, inner) + 4 * width
    embeddings = (2 + _positions(config)) * width + _patch(config, width)
    joined, joins = config["projector_input_dim"], config["projector_output_dim"]
    adapter = inner * joined + joined * joins + config["vision_output_dim"] * text_width
    cut = layers * _matrices(width, inner) + adapter
    return VisionTower(cut, layers * small + embeddings + 4 * width, config["num_attention_heads"])


def _glm4v(config: Fields, text_width: int) -> VisionTower:
    width, out, layers = config["hidden_size"], config["out_hidden_size"], config["depth"]
    merger = out * out + 3 * out * config["intermediate_size"]
    patch = _patch(config, width, config["temporal_patch_size"]) + width
    embeddings = _positions(config) * width + patch
    downsample = out * width * int(config.get("spatial_merge_size") or _SIDE) ** 2 + out
    cut = layers * _matrices(width, out, gated=True) + merger
    other = layers * 2 * width + embeddings + 2 * out + downsample + 2 * width
    joined, side = config["intermediate_size"], int(config.get("spatial_merge_size") or _SIDE)
    shapes = _qwen_shapes(config, width, out, out, gated=True)
    mergers = ((width * side**2, out), (out, out), (out, 2 * joined), (joined, out))
    return VisionTower(cut, other, config["num_heads"], replace(shapes, mergers=mergers))


_TOWERS: Mapping[str, Read] = {
    "qwen2_vl": _qwen2,
    "qwen2_5_vl": _qwen2_5,
    "qwen3_vl": _qwen3,
    "qwen3_vl_moe": _qwen3,
    "qwen3_5": _qwen3,
    "qwen3_5_moe": _qwen3,
    "siglip_vision_model": _siglip,
    "pixtral": _pixtral,
    "llama4_vision_model": _llama4,
    "glm4v": _glm4v,
    "glm4v_moe": _glm4v,
}
"""By the type of `vision_config`, else of the wrapper."""


def counted(tower: VisionTower | None) -> str:
    """What of the encoders of a model counts: a clause for its note."""
    if tower is None:
        return "the weights and the work of its encoders are not counted"
    weights = f"the {tower.parameters / 1e9:.2f} billion weights of its vision tower take memory"
    if tower.shapes is None:
        return f"{weights}, and the work of its encoders is not counted"
    return f"{weights}, and the work of its encoders counts where encoder_inputs have times"
