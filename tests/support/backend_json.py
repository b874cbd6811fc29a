"""The text of backend.json: that of BACKEND_CONFIG.md, and short ones."""

import json

DOCUMENTED = """{
  "preferred_backend": "auto",
  "backend_priority": [
    "cuda",
    "opencl",
    "cpp",
    "python"
  ],
  "force_backend": null
}
"""


def prefer(path, name):
    path.write_text(json.dumps({"preferred_backend": name}))
