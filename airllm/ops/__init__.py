"""Ops: their declarations, argument checks and dispatch."""
