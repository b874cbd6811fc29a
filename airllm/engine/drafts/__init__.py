"""Speculative decoding: guess the next tokens, verify all guesses in one call, keep those that are right."""
