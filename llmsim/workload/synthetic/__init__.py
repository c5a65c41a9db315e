"""Synthetic traffic: distributions of lengths, patterns of arrival, shared prefixes."""
