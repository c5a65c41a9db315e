"""Layouts that follow one another on the same devices: what a switch moves between them."""
