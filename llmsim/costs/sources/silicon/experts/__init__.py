"""Times of grouped experts from the silicon database."""
