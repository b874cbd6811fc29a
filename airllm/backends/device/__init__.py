"""What backends with arrays of their own are made of: launches, devices, and the way of arrays."""
