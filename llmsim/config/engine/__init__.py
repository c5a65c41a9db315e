"""Engine options: declaration, profiles of engine versions, and their defaults."""
