"""The vision tower of a multimodal model, as far as it takes memory beside the text part."""

from dataclasses import dataclass

from llmsim.model.layout import Layout


@dataclass(frozen=True)
class VisionTower:
    """Weights of the layers that turn images into tokens, and of what joins them to the text."""

    layer_parameters: int
    """Of matrices that tensor-parallel ranks share, as far as they share the heads."""
    other_parameters: int
    """Of embeddings, norms and projectors, which each rank has."""
    heads: int

    @property
    def parameters(self) -> int:
        """Of all of it."""
        return self.layer_parameters + self.other_parameters

    def device_parameters(self, layout: Layout) -> int:
        """Of one rank. A tower whose heads the ranks do not divide is whole on each."""
        ranks = layout.tp if self.heads % layout.tp == 0 else 1
        return -(-self.layer_parameters // ranks) + self.other_parameters
