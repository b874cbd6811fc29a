"""Benchmarks, each a script of its own; a package so that they share `record`."""
