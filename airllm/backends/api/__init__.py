"""Backends as callers see them: the ops as methods of an object, what there is, how much memory it has."""
