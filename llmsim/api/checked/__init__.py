"""The options of a run: as given, as checked, and those that change nothing."""
