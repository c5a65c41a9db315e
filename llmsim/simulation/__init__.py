"""A run: what the native core is given, its loop, and what it has found."""
