"""A server with OpenAI's interface: one process, one model, many clients.

`build_app` makes an ASGI app of an engine, for any ASGI server; `run` serves it with uvicorn. The extra
`serve` installs what they need. Nothing here computes: `engine_thread.py` owns a `Scheduler` and is the only
caller of it. The rest turns requests into `SequenceRequest`s, and events into answers.
"""
