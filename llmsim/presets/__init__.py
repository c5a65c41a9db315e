"""Data files of the package: models, devices, topologies, engines, prices."""

from pathlib import Path

PRESETS_DIR = Path(__file__).resolve().parent
"""Folder that holds the data files."""
