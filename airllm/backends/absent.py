"""Backend names of other systems that no backend of this tree replaces.

Names that one replaces are in its declaration (`stands_for`).
"""

from airllm.backends.declaration import Absent

_PRODUCTS = "float32 matrix products are NumPy's, by the BLAS that print_backend_info() names"
ABSENT = {
    "nki": Absent(
        "NKI",
        "Neuron",
        "there is no backend for AWS's Neuron devices: their compiler takes whole graphs, not single ops",
    ),
    "mkl": Absent("MKL", "CPU", f"MKL is a library, not a backend: {_PRODUCTS} (NumPy can be had with MKL)"),
    "mkldnn": Absent(
        "oneDNN",
        "CPU",
        f"oneDNN is a library, not a backend: {_PRODUCTS}, and it gains nothing over that",
        aliases=("onednn",),
    ),
    "openblas": Absent("OpenBLAS", "CPU", f"OpenBLAS is a library, not a backend: {_PRODUCTS}"),
}
