"""Verbs about execution graphs and the networks under them."""
