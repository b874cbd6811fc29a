"""Requests and responses of OpenAI's interface, as msgspec Structs; errors in its shape."""
