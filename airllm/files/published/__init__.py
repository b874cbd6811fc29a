"""Hugging Face folders with quantized weights, as they are published.

A folder's matrices are converted once, to the ggml format that holds them exactly or nearest, into a file in
the cache folder. From then on that file is mapped like any other. To add a way of storing weights: write its
`Scheme`, and its line in `methods.py`.
"""
