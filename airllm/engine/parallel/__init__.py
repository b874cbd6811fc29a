"""A model that several processes, or several kernels of one, share."""
