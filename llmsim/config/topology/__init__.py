"""Reads topology files and places ranks on their devices."""
