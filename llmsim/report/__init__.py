"""What a person reads: the summary and the heartbeat."""
