"""Attention-FFN disaggregation: layouts, layers and transfers of the two sides."""
