"""The engine's servers behind a cluster file's instances, and the proxy before them."""
