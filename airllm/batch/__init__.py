"""Files of requests, in the format of OpenAI's batches, answered by the app of the server.

`requests_file.py` reads and checks them, `results_file.py` has what is answered already, `run.py` answers the
rest. A run that was killed goes on where it was: a result is one line, appended and flushed to the disk.
"""
