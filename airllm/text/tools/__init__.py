"""Tools that a model may call: their definitions, the form of calls in its text, and a reader of calls."""
