"""The public backend API: backend objects with ops as methods, discovery, and memory checks."""
