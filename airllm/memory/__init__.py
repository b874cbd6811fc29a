"""Memory: layers, keys and values, and the budget that they share."""
