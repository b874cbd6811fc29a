"""The backends of this tree: a module for each, of the backend's name, with its declaration as BACKEND."""
