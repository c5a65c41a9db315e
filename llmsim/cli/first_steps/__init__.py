"""Commands for the first minutes and for questions about an installation or a cluster file."""
