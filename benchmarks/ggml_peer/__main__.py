import sys

from benchmarks import ggml_peer

try:
    print(ggml_peer.library())
except ggml_peer.NoPeer as error:
    sys.exit(f"no ggml to compare with: {error}")
