"""Exports the operators of a step as a graph: DOT, GraphML, JSON, Chakra."""
