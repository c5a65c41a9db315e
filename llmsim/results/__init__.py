"""What a run's columns mean, and the figures that are made of them."""
