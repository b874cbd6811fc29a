"""What backends share that compile the text of `cpp_ext/gpu_kernels/` at run time: its launches."""
