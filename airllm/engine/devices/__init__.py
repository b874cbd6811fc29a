"""Which backend runs a model, and which of its layers are on a device."""
