"""Measuring: ops, models, the tuning of `auto`, and the report of it."""
