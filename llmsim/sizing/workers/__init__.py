"""Worker processes that answer the tasks of searches: forked here, or with Ray."""
