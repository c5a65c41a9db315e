"""Results of a run in the formats of benchmark tools and monitoring systems."""
