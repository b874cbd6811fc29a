"""Benchmarks of ops and models, the tuning of `auto`, and reports."""
