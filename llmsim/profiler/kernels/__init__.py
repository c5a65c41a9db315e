"""Dense operators, quantised linear layers and fused layers of one rank."""
