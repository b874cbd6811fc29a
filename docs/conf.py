"""Builds the documentation site: `make docs`. Pages are the .md files here and the top folder's guides."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

from airllm import __version__  # noqa: E402

project = "airllm"
release = version = __version__
copyright = "the authors of airllm. Apache-2.0"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "guides",
    "plots",
    "reference",
    "shapes",
]
exclude_patterns = ["_build"]
nitpicky = False  # types of other packages are not linked: a site that builds without a network

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

smartquotes = False  # "auto" is a value, and ... an axis
default_role = "code"  # docstrings are Markdown: `x` is code
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"airllm {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_use_index = html_domain_indices = False  # the search finds more
html_show_sourcelink = False
html_copy_source = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
