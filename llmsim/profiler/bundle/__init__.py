"""What is measured in which order, and the files it goes to."""
