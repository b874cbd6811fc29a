"""Arrays of other libraries, in and out: streams, memory, messages."""

import ctypes
import gc

import numpy as np
import pytest
from arrays import (
    LEGACY,
    OTHER_STREAM,
    PER_THREAD,
    STREAM,
    DLPackArray,
    InterfaceArray,
    Managed,
    ManagedVersioned,
    Memory,
    imported,
    python,
    runtime,
)
from machine import (  # noqa: F401
    DTYPES,
    HERE,
    W,
    X,
    all_of,
    assert_agrees,
    clean_machine,
    message,
    on_device,
    sample,
)

import tensor_ops_cuda as cuda
from airllm.tensor_ops import OPS

# ---- what other libraries give


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("version", (0, 1))
@pytest.mark.parametrize("kind", (2, 13))
def test_takes_dlpack(dtype, version, kind):
    x = X.astype(dtype)
    array = DLPackArray(x, version=version, kind=kind)
    copies = cuda.copies()
    result = cuda.silu(array)
    del array  # which spoils its memory at once
    assert isinstance(result, cuda.DeviceArray) and cuda.copies() == copies
    assert_agrees(result.numpy(), OPS["silu"], x)


@pytest.mark.parametrize("says_stream", (True, False))
@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_takes_cuda_array_interface(dtype, says_stream):
    x = X.astype(dtype)
    array = InterfaceArray(x, stream=STREAM if says_stream else LEGACY, says_stream=says_stream)
    result = cuda.softmax(array)
    del array
    assert_agrees(result.numpy(), OPS["softmax"], x)


@pytest.mark.parametrize(
    "streams",
    [
        (STREAM, OTHER_STREAM, OTHER_STREAM),
        (STREAM, OTHER_STREAM, LEGACY),
        (LEGACY, STREAM, PER_THREAD),
        (PER_THREAD, LEGACY, PER_THREAD),
    ],
)
def test_keeps_the_order_of_several_streams(streams):
    x, weight, out = (InterfaceArray(a, stream=s) for a, s in zip((X, W, X), streams, strict=True))
    assert cuda.rms_norm(x, weight, out=out) is out
    del weight, x  # the weight's memory is spoilt before anybody waits for x's stream
    assert_agrees(out.values(), OPS["rms_norm"], X, W)


def test_a_chain_over_streams():
    x = InterfaceArray(X, stream=STREAM)
    y = cuda.silu(cuda.gelu(x))
    del x
    out = DLPackArray(np.zeros_like(X), stream=OTHER_STREAM)
    cuda.softmax(y, out=out)
    del y
    exact = OPS["softmax"].exact(OPS["silu"].exact(OPS["gelu"].exact(X)))
    np.testing.assert_allclose(out.values(), exact, rtol=1e-5)


@pytest.mark.parametrize("nth", (3, 4))
@pytest.mark.parametrize("function", ("cudaEventRecord", "cudaStreamWaitEvent"))
def test_a_home_that_cannot_wait_is_waited_for(function, nth):
    """The kernel has been launched by then, and no order is kept with what follows: it must be over."""
    x, out = InterfaceArray(X, stream=STREAM), InterfaceArray(np.zeros_like(X), stream=OTHER_STREAM)
    weight = InterfaceArray(W, stream=LEGACY, says_stream=False)
    runtime.on_host_fail(function.encode(), nth, 1)
    assert function in message(RuntimeError, cuda.rms_norm, x, weight, out=out)
    del weight, x  # which spoils their memory at once
    assert_agrees(out.values(), OPS["rms_norm"], X, W)


def test_unaligned_and_offset_arrays():
    x = InterfaceArray(X, offset=4)
    assert_agrees(cuda.silu(x).numpy(), OPS["silu"], X)
    y = DLPackArray(X, offset=12)
    assert_agrees(cuda.softmax(y).numpy(), OPS["softmax"], X)
    assert "aligned" in message(ValueError, cuda.silu, InterfaceArray(X, offset=2))


def test_strides_of_single_rows_do_not_matter():
    assert cuda.silu(DLPackArray(X[:1], strides=(7, 1))).shape == (1, 40)
    assert cuda.silu(InterfaceArray(X[:1], strides=(7, 1))).shape == (1, 40)


def test_messages_about_arrays_of_others():
    strided = message(ValueError, cuda.silu, DLPackArray(X, strides=(1, 3)))
    assert strided.startswith("silu: x has strides (4, 12), expected C-contiguous")
    strided = message(ValueError, cuda.silu, InterfaceArray(X, strides=(1, 3)))
    assert strided.startswith("silu: x has strides (4, 12), expected C-contiguous")
    wide = X.astype(np.float64)
    expected = "silu: x has dtype float64, expected float32, float16 or bfloat16"
    assert message(TypeError, cuda.silu, DLPackArray(wide)) == expected
    assert message(TypeError, cuda.silu, InterfaceArray(wide)) == expected
    whole = message(TypeError, cuda.silu, DLPackArray(X.astype(np.int32)))
    assert whole.startswith("silu: x has dtype int32")
    read_only = "silu: out is read-only, expected a writeable array"
    x = cuda.to_device(X)
    assert message(ValueError, cuda.silu, x, out=DLPackArray(X, read_only=True)) == read_only
    assert message(ValueError, cuda.silu, x, out=InterfaceArray(X, read_only=True)) == read_only
    assert message(TypeError, cuda.silu, DLPackArray(X, major=2)) == (
        "silu: x has DLPack version 2, expected version 1"
    )
    assert "has type DLPackArray, expected a NumPy array" in message(
        TypeError, cuda.silu, DLPackArray(X, kind=1)
    )


def test_an_export_that_fails_names_the_argument():
    class Grad(DLPackArray):
        def __dlpack__(self, **_):
            raise BufferError("requires grad")

    text = message(TypeError, cuda.silu, Grad(X))
    assert text == "silu: x of type Grad could not be exported by its library: requires grad"


def test_host_memory_in_a_device_interface():
    class Liar:
        __cuda_array_interface__ = {**X.__array_interface__, "version": 3, "stream": None, "typestr": "<f4"}

    assert message(TypeError, cuda.silu, Liar()).startswith("silu: x has host memory")


@pytest.mark.parametrize("stream", (LEGACY, STREAM))
@pytest.mark.parametrize("library", ("torch", "cupy"))
@pytest.mark.parametrize("op", HERE, ids=lambda op: op.name)
def test_arrays_come_back_as_their_kind(library, stream, op):
    module = imported(library, stream)
    kind = getattr(module, "Tensor" if library == "torch" else "ndarray")
    args = sample(op)
    arrays = {name: on_device(a, lambda values: kind(values, device=1)) for name, a in args.items()}
    copies = cuda.copies()
    results = getattr(cuda, op.name)(**arrays)
    del arrays
    assert all(type(r) is kind and r.device_id == 1 for r in all_of(results))
    assert module.made == len(all_of(results)) and cuda.copies() == copies
    assert (module.cuda.asked_device, module.cuda.current_index) == (1, 0)
    assert_agrees(tuple(r.values() for r in all_of(results)), op, **args)


def test_a_library_and_an_array_of_our_own():
    torch = imported("torch", STREAM)
    x, weight = torch.Tensor(X), cuda.to_device(W)
    result = cuda.rms_norm(x, weight)
    del x, weight
    assert_agrees(result.values(), OPS["rms_norm"], X, W)


# ---- what other libraries take


def take(array, structure, name, **arguments):
    """What a consumer of a capsule does: rename it, so that the structure is its own."""
    capsule = array.__dlpack__(**arguments)
    pointer = python.PyCapsule_GetPointer(capsule, name)
    python.PyCapsule_SetName(capsule, b"used_" + name)
    return ctypes.cast(pointer, ctypes.POINTER(structure)).contents, pointer


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("version", (None, (0, 8), (1, 1)))
def test_gives_dlpack(dtype, version):
    x = X.astype(dtype)
    array = cuda.silu(cuda.to_device(x))
    structure, name = (
        (ManagedVersioned, b"dltensor_versioned") if version == (1, 1) else (Managed, b"dltensor")
    )
    managed, pointer = take(array, structure, name, stream=STREAM, max_version=version)
    tensor = managed.tensor
    assert (tensor.device.type, tensor.device.id) == array.__dlpack_device__() == (2, 0)
    assert (tensor.shape[0], tensor.shape[1], tensor.strides[0], tensor.strides[1]) == (3, 40, 40, 1)
    assert (tensor.code, tensor.bits, tensor.lanes) == (4 if dtype == DTYPES[2] else 2, 8 * x.itemsize, 1)
    del array  # the structure keeps the memory
    gc.collect()
    runtime.on_host_synchronize(STREAM, 0)  # the consumer's stream, and nothing else
    values = np.frombuffer(ctypes.string_at(tensor.data, x.nbytes), dtype).reshape(x.shape)
    assert_agrees(values, OPS["silu"], x)
    managed.deleter(pointer)


@pytest.mark.parametrize("by", ("dlpack", "interface"))
def test_memory_stays_until_its_readers_are_done(by):
    array = cuda.silu(cuda.to_device(X))
    read = Memory(X.nbytes, STREAM, 0)
    if by == "dlpack":
        managed, pointer = take(array, Managed, b"dltensor", stream=STREAM)
        runtime.on_host_copy(read.pointer, managed.tensor.data, X.nbytes, STREAM, 0)
        managed.deleter(pointer)
    else:
        found = array.__cuda_array_interface__
        runtime.on_host_wait(STREAM, found["stream"], 0)
        runtime.on_host_copy(read.pointer, found["data"][0], X.nbytes, STREAM, 0)
    del array
    gc.collect()
    runtime.on_host_synchronize(LEGACY, 0)  # the home's work first, the freeing too
    assert_agrees(np.frombuffer(read.read(), np.float32).reshape(X.shape), OPS["silu"], X)


def test_a_capsule_nobody_takes_is_freed():
    array = cuda.to_device(X)
    for version in (None, (1, 0)):
        array.__dlpack__(max_version=version)
    del array  # the fixture finds memory that stays


def test_gives_cuda_array_interface():
    array = cuda.silu(cuda.to_device(X))
    found = array.__cuda_array_interface__
    assert (found["shape"], found["typestr"], found["strides"], found["version"]) == ((3, 40), "<f4", None, 3)
    runtime.on_host_synchronize(found["stream"], 0)
    values = np.frombuffer(ctypes.string_at(found["data"][0], X.nbytes), np.float32).reshape(X.shape)
    assert_agrees(values, OPS["silu"], X)
    assert not hasattr(cuda.to_device(X.astype(DTYPES[2])), "__cuda_array_interface__")


def test_exports_it_cannot_make():
    array = cuda.to_device(X)
    assert "call .numpy()" in message(BufferError, array.__dlpack__, dl_device=(1, 0))
    assert "without a copy" in message(BufferError, array.__dlpack__, copy=True)
    assert "expected 1 (legacy)" in message(ValueError, array.__dlpack__, stream=0)
