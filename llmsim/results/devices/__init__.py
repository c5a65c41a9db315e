"""Results by device: utilisation, what limits each operator, energy."""
