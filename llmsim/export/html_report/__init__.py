"""A run, or several side by side, as one HTML file that opens without a network."""
