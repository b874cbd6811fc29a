"""A user's program, which mypy --strict and pyright's strict mode accept: tests/build/test_types.py."""

from collections.abc import Iterator

import numpy as np
from typing_extensions import assert_type

import airllm
from airllm import AutoModel, CpuBackend, LayerWiseInferenceEngine, PersistentKernel, backends, tensor_ops
from airllm.formats import FORMATS, Quantized


def use_a_model(path: str) -> list[str]:
    with AutoModel.from_pretrained(path, context=64, max_memory="1GB", backend="cpp") as model:
        assert_type(model, LayerWiseInferenceEngine)
        text = model.generate("a", 3, temperature=0.5, seed=1)
        texts = model.generate(["a", "b"], 3)
        assert_type(text, str)
        assert_type(texts, list[str])
        assert_type(model.stream("a", 3), Iterator[str])
        assert_type(model.chat([{"role": "user", "content": "a"}], stop="."), str)
        answer = model.answer([{"role": "user", "content": "a"}])
        if model.statistics is not None:
            print(model.statistics.reason, model.statistics.new_tokens, answer.text)
        vectors = model.embed(["a"])
        print(vectors.shape, model.tokenizer.encode("a"), model.memory_estimate().total_bytes)
    return [text, *texts]


def use_ops() -> None:
    x, weight = np.ones((2, 64), np.float32), np.ones(64, np.float32)
    y = tensor_ops.rms_norm(x, weight, eps=1e-6)
    y = tensor_ops.silu(y, out=y, backend="python")
    stored = tensor_ops.quantize(x, "q8_0")
    assert_type(stored, Quantized)
    product = tensor_ops.linear(x, stored)
    cos, sin = tensor_ops.rope_table(np.arange(2), 64)
    print(y.shape, product.sum(), cos.dtype, sin.dtype, FORMATS["q8_0"].bytes)
    with tensor_ops.use_backend("python"):
        print(tensor_ops.get_backend(), tensor_ops.explain("silu", x))


def use_backends() -> None:
    assert_type(airllm.get_available_backends(), list[str])
    assert_type(backends.is_backend_available("cpp"), bool)
    print(airllm.__version__, airllm.get_include(), airllm.get_cpp_flags(openmp=False))
    print(CpuBackend(num_threads=1).softmax(np.ones(4, np.float32)), airllm.init_backend("cpp").name())


def step(path: str) -> int:
    kernel = PersistentKernel(model=path, backend="cpp", fallback_backends=["python"])
    logits = kernel.step(1)
    return int(np.argmax(logits)) + kernel.length
