"""Shared parts of backends with their own device arrays: ops, launch plans, strides, device selection."""
