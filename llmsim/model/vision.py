"""The vision tower of a multimodal model: its memory beside the text part, and the sizes that its
time depends on.
"""

from msgspec import Struct

from llmsim.model.layout import Layout


class VisionShapes(Struct, frozen=True):
    """Sizes of the layers that turn patches of an image into tokens."""

    layers: int
    width: int
    inner: int
    """Of a layer's MLP."""
    gated: bool
    patch_inputs: int
    """Numbers of a patch: its pixels, by channel and frame."""
    patches_per_token: int
    mergers: tuple[tuple[int, int], ...] = ()
    """(inputs, outputs) of the matrices behind the layers, which work on tokens; in order, each
    pair of them shares its inner dimension.
    """
    full_layers: int = 0
    """Layers in which each patch sees its whole image; the others see `window_patches`."""
    window_patches: int = 0


class VisionTower(Struct, frozen=True):
    """Weights of the layers that turn images into tokens, and of what joins them to the text."""

    layer_parameters: int
    """Of matrices that tensor-parallel ranks share, as far as they share the heads."""
    other_parameters: int
    """Of embeddings, norms and projectors, which each rank has."""
    heads: int
    shapes: VisionShapes | None = None
    """None: its config leaves open how many patches a token has."""

    @property
    def parameters(self) -> int:
        """Of all of it."""
        return self.layer_parameters + self.other_parameters

    def ranks(self, layout: Layout) -> int:
        """Over which its layers are cut. A tower whose heads the ranks do not divide is whole on
        each.
        """
        return layout.tp if self.heads % layout.tp == 0 else 1

    def device_parameters(self, layout: Layout) -> int:
        """Of one rank."""
        return -(-self.layer_parameters // self.ranks(layout)) + self.other_parameters
