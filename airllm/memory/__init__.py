"""What lies in memory: layers, keys and values, within a budget."""
