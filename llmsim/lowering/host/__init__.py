"""Lowers what a group's host does: launches with CUDA graphs, API servers, start-up checks."""
