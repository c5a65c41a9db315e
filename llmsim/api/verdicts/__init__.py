"""Whether results can be trusted, and which field of a cluster file an error is about."""
