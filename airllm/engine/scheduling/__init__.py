"""Serves many sequences with one model: continuous batching, shared prefixes, limits of memory."""
