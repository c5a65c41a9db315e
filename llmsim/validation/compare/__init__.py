"""Compares two recorded runs request by request, by means, and over time."""
