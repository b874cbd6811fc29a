"""`python -m airllm`: the command `airllm`."""

import sys

from airllm.cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
