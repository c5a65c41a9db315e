"""The options of `llmsim run`, each declared once, in a module for each heading of the help."""

from llmsim.api.options import costs, engine, inputs, outputs, peer

PANELS = tuple(module.PANEL for module in (inputs, engine, costs, outputs, peer))
"""In the order of the help."""
