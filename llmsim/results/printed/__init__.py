"""What a run prints: the headline, the full text and its notes."""
