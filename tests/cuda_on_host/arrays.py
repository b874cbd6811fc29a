"""Arrays of other libraries, as far as the CUDA backend sees them, in the memory of the stand-in runtime.

Every write to them is put on a stream and happens only when somebody waits for it, and when one dies its
library at once spoils the memory on its own stream: whoever does not keep the order of streams computes
nonsense.
"""

import ctypes
import sys
import types

import ml_dtypes
import numpy as np

import tensor_ops_cuda

runtime = ctypes.CDLL(tensor_ops_cuda.__file__)
runtime.on_host_allocate.restype = ctypes.c_void_p
runtime.on_host_live_blocks.restype = ctypes.c_size_t
SIZE, POINTER = ctypes.c_size_t, ctypes.c_void_p
runtime.on_host_allocate.argtypes = [SIZE, ctypes.c_int]
runtime.on_host_release.argtypes = [POINTER]
runtime.on_host_write.argtypes = [POINTER, POINTER, SIZE, SIZE, ctypes.c_int]
runtime.on_host_copy.argtypes = [POINTER, POINTER, SIZE, SIZE, ctypes.c_int]
runtime.on_host_enqueue.argtypes = [SIZE, ctypes.c_int, POINTER, POINTER]
runtime.on_host_synchronize.argtypes = [SIZE, ctypes.c_int]
runtime.on_host_wait.argtypes = [SIZE, SIZE, ctypes.c_int]
runtime.on_host_machine.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int, SIZE]
runtime.on_host_fail.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]

LEGACY, PER_THREAD, STREAM, OTHER_STREAM = 1, 2, 0x1000, 0x2000
CODES = {"float32": (2, 32), "float16": (2, 16), "bfloat16": (4, 16), "float64": (2, 64)}
CODES |= {"int32": (0, 32), "int64": (0, 64), "uint8": (1, 8), "bool": (6, 8)}


class Memory:
    """A block of device memory of some other library, whose own work goes to `stream`."""

    def __init__(self, nbytes: int, stream: int, device: int):
        self.nbytes, self.stream, self.device = nbytes, stream, device
        self.pointer = runtime.on_host_allocate(max(nbytes, 1), device)

    def write(self, content: bytes) -> None:
        runtime.on_host_write(self.pointer, content, self.nbytes, self.stream, self.device)

    def read(self) -> bytes:
        runtime.on_host_synchronize(self.stream, self.device)
        return ctypes.string_at(self.pointer, self.nbytes)

    def __del__(self):
        self.write(b"\xff" * self.nbytes)  # given to somebody else, who is quick: NaN in every dtype
        runtime.on_host_synchronize(self.stream, self.device)
        Memory.pending.append((self.stream, self.device, self.pointer))

    pending: list[tuple[int, int, int]] = []

    @classmethod
    def release_all(cls) -> None:
        for stream, device, pointer in cls.pending:
            runtime.on_host_synchronize(stream, device)
            runtime.on_host_release(pointer)
        cls.pending.clear()


class Array:
    """What arrays of other libraries have in common; strides are in elements."""

    def __init__(self, values, stream=STREAM, device=0, strides=None, offset=0):
        values = np.asarray(values)
        self.dtype, self.shape, self.offset = values.dtype, values.shape, offset
        self.strides, self.device_id = strides, device
        self.memory = Memory(offset + values.nbytes, stream, device)
        self.memory.write(b"\0" * offset + values.tobytes())

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def values(self) -> np.ndarray:
        content = self.memory.read()[self.offset :]
        return np.frombuffer(content, self.dtype).reshape(self.shape).copy()


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


python = ctypes.pythonapi
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = [POINTER, ctypes.c_char_p, POINTER]
python.PyCapsule_GetPointer.restype = POINTER
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


def tensor_of(array: Array, kind: int) -> Tensor:
    code, bits = CODES[array.dtype.name]
    rank = len(array.shape)
    shape = (ctypes.c_int64 * rank)(*array.shape)
    strides = (ctypes.c_int64 * rank)(*array.strides) if array.strides else None
    made = Tensor(array.memory.pointer, Device(kind, array.device_id), rank, code, bits, 1, shape, strides)
    made.byte_offset = array.offset
    return made


class DLPackArray(Array):
    """An array that says what it is by DLPack alone, of the version `version`."""

    def __init__(self, values, *args, version=1, kind=2, read_only=False, major=1, **kwargs):
        super().__init__(values, *args, **kwargs)
        self.version, self.kind, self.read_only, self.major = version, kind, read_only, major

    def __dlpack_device__(self):
        return self.kind, self.device_id

    def __dlpack__(self, *, stream=None, **more):
        if self.version == 0 and more:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        if stream not in (-1, self.memory.stream):
            runtime.on_host_wait(stream, self.memory.stream, self.device_id)
        tensor = tensor_of(self, self.kind)
        if self.version == 0:
            self.managed, name = Managed(tensor), b"dltensor"
        else:
            flags = 1 if self.read_only else 0
            self.managed = ManagedVersioned(self.major, 0, None, DELETER(), flags, tensor)
            name = b"dltensor_versioned"
        return python.PyCapsule_New(ctypes.addressof(self.managed), name, None)


class InterfaceArray(Array):
    """An array that says what it is by __cuda_array_interface__; `says_stream` as version 3 does."""

    def __init__(self, values, *args, says_stream=True, typestr=None, read_only=False, **kwargs):
        super().__init__(values, *args, **kwargs)
        self.says_stream, self.typestr, self.read_only = says_stream, typestr, read_only

    @property
    def __cuda_array_interface__(self):
        itemsize = self.dtype.itemsize
        found = {
            "shape": self.shape,
            "typestr": self.typestr or self.dtype.str,
            "data": (self.memory.pointer + self.offset if 0 not in self.shape else 0, self.read_only),
            "strides": tuple(s * itemsize for s in self.strides) if self.strides else None,
            "version": 3 if self.says_stream else 2,
        }
        return {**found, "stream": self.memory.stream} if self.says_stream else found


def imported(name: str, stream: int) -> types.ModuleType:
    """A library with the names that PyTorch and CuPy share here; its current stream is `stream`."""
    module = types.ModuleType(name)
    kind = "Tensor" if name == "torch" else "ndarray"

    class LibraryArray(DLPackArray):
        def __init__(self, values, **kwargs):
            super().__init__(values, **{"stream": module.cuda.stream, **kwargs})

        @property
        def device(self):
            return f"cuda:{self.device_id}"

        def __dlpack__(self, **arguments):
            if name == "torch" and self.device_id != module.cuda.current_index:
                raise BufferError("Can't export tensors on a different CUDA device index.")
            return super().__dlpack__(**arguments)

    def empty(shape, dtype, device=None):
        module.made += 1
        index = module.cuda.current_index if device is None else int(device[-1])
        return LibraryArray(np.full(shape, np.nan, dtype), device=index)

    def current_stream(device):
        module.cuda.asked_device = device
        number = module.cuda.stream
        return types.SimpleNamespace(cuda_stream=0 if number == LEGACY else number, ptr=number)

    class CurrentDevice:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            self.before, module.cuda.current_index = module.cuda.current_index, self.index

        def __exit__(self, *_):
            module.cuda.current_index = self.before

    module.cuda = types.SimpleNamespace(stream=stream, current_index=0)
    module.cuda.current_stream = module.cuda.get_current_stream = current_stream
    module.cuda.device = module.cuda.Device = CurrentDevice
    module.cuda.current_device = lambda: module.cuda.current_index
    module.empty, module.made = empty, 0
    module.float32, module.float16, module.bfloat16 = np.float32, np.float16, ml_dtypes.bfloat16
    setattr(module, kind, LibraryArray)
    sys.modules[name] = module
    return module
