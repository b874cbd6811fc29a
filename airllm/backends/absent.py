"""Names that other systems have for a backend and that are none here, and what stands for each."""

_PRODUCTS = "float32 matrix products are NumPy's, by the BLAS that print_backend_info() names"
REASONS = {
    "rocm": "there is no backend of this name: AMD's GPUs run the opencl backend, with ROCm's OpenCL driver",
    "triton": "there is no backend for Triton: its kernels run on PyTorch's tensors alone, and without a GPU "
    "only in its interpreter; cuda and opencl run on the same GPUs without PyTorch",
    "nki": "there is no backend for AWS's Neuron devices: their compiler takes whole graphs, not single ops",
    "cudnn": "cuDNN is a library, not a backend: cuda has kernels of its own for all that it would do here",
    "mkl": f"MKL is a library, not a backend: {_PRODUCTS} (NumPy can be had with MKL)",
    "mkldnn": f"oneDNN is a library, not a backend: {_PRODUCTS}, and it gains nothing over that",
    "openblas": f"OpenBLAS is a library, not a backend: {_PRODUCTS}",
    "metal": "Metal is for Apple's GPUs, of which there is none here; mlx runs on the CPU by its own name",
}
ALIASES = {"onednn": "mkldnn", "mps": "metal"}
# What each is called in a summary, and what it runs on.
LABELS = {
    "rocm": ("ROCm", "ROCm"),
    "triton": ("Triton", "CUDA"),
    "nki": ("NKI", "Neuron"),
    "cudnn": ("cuDNN", "CUDA"),
    "mkl": ("MKL", "CPU"),
    "mkldnn": ("oneDNN", "CPU"),
    "openblas": ("OpenBLAS", "CPU"),
    "metal": ("Metal", "Metal"),
}
