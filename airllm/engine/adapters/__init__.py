"""LoRA adapters: small matrices that are added to a model's own while it runs, and can be switched.

A matrix W with the adapter's A and B computes W x + scale * B (A x). Nothing is merged, so weights stay as
they are stored.
"""
