"""Simulates published measurements of real servers with nothing fitted, and tabulates errors."""
