"""ggml's flash attention on a CPU, through the C interface of the libraries in libggml-python."""

import ctypes
import functools
import pathlib

import numpy as np

from .tensors import aligned_empty, contiguous

TYPES = {"float32": 0, "float16": 1}  # enum ggml_type
PREC_F32 = 10  # enum ggml_prec, as llama.cpp asks for it
MAX_THREADS = 512
pointer, size = ctypes.c_void_p, ctypes.c_size_t


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", size), ("mem_buffer", pointer), ("no_alloc", ctypes.c_bool)]


class ThreadpoolParams(ctypes.Structure):
    _fields_ = [("cpumask", ctypes.c_bool * MAX_THREADS), ("n_threads", ctypes.c_int),
                ("prio", ctypes.c_int), ("poll", ctypes.c_uint32), ("strict_cpu", ctypes.c_bool),
                ("paused", ctypes.c_bool)]


# name: (result, parameters)
FUNCTIONS = {
    "backend_cpu_buffer_from_ptr": (pointer, [pointer, size]),
    "backend_cpu_init": (pointer, []),
    "backend_cpu_set_n_threads": (None, [pointer, ctypes.c_int]),
    "backend_cpu_set_threadpool": (None, [pointer, pointer]),
    "backend_buffer_free": (None, [pointer]),
    "backend_graph_compute": (ctypes.c_int, [pointer, pointer]),
    "backend_tensor_alloc": (ctypes.c_int, [pointer, pointer, pointer]),
    "build_forward_expand": (None, [pointer, pointer]),
    "cpu_has_avx2": (ctypes.c_int, []),
    "cpu_has_avx512": (ctypes.c_int, []),
    "flash_attn_ext": (pointer, [pointer] * 5 + [ctypes.c_float] * 3),
    "flash_attn_ext_set_prec": (None, [pointer, ctypes.c_int]),
    "free": (None, [pointer]),
    "graph_overhead": (size, []),
    "init": (pointer, [InitParams]),
    "new_graph": (pointer, [pointer]),
    "new_tensor_1d": (pointer, [pointer, ctypes.c_int, ctypes.c_int64]),
    "tensor_overhead": (size, []),
    "threadpool_new": (pointer, [ctypes.POINTER(ThreadpoolParams)]),
    "threadpool_params_default": (ThreadpoolParams, [ctypes.c_int]),
    "threadpool_pause": (None, [pointer]),
    "view_4d": (pointer, [pointer, pointer] + [ctypes.c_int64] * 4 + [size] * 4),
}


@functools.cache
def library():
    """{name without ggml_: function}."""
    import libggml

    folder = pathlib.Path(libggml.__file__).parent / "lib64"
    loaded = ctypes.CDLL(str(folder / "libggml-cpu.so.0"))  # brings libggml-base along
    found = {}
    for name, (result, parameters) in FUNCTIONS.items():
        found[name] = getattr(loaded, "ggml_" + name)
        found[name].restype, found[name].argtypes = result, parameters
    return found


@functools.cache
def backend(threads):
    """(backend, thread pool): one of each a process, as a program that serves a model has."""
    lib = library()
    pool = lib["threadpool_new"](lib["threadpool_params_default"](threads))
    made = lib["backend_cpu_init"]()
    lib["backend_cpu_set_n_threads"](made, threads)
    lib["backend_cpu_set_threadpool"](made, pool)
    return made, pool


class Graph:
    """Attention on one set of arrays, logically [B,H,S,D] in any order of memory."""

    def __init__(self, q, k, v):
        lib = library()
        self._arrays, self._buffers = (q, k, v), []
        self._context = lib["init"](
            InitParams(lib["graph_overhead"]() + 16 * lib["tensor_overhead"](), None, True))
        views = [self._view(array) for array in self._arrays]
        node = lib["flash_attn_ext"](self._context, *views, None, q.shape[3] ** -0.5, 0.0, 0.0)
        lib["flash_attn_ext_set_prec"](node, PREC_F32)
        batch, heads, seqlen_q, _ = q.shape
        made = aligned_empty((batch, seqlen_q, heads, v.shape[3]), np.float32)
        self._place(node, made)
        self.out = made.transpose(0, 2, 1, 3)
        self.graph = lib["new_graph"](self._context)
        lib["build_forward_expand"](self.graph, node)

    def _place(self, tensor, array):
        lib, address = library(), array.ctypes.data
        self._buffers.append(lib["backend_cpu_buffer_from_ptr"](address, array.nbytes))
        lib["backend_tensor_alloc"](self._buffers[-1], tensor, address)

    def _view(self, array):
        lib = library()
        tensor = lib["new_tensor_1d"](self._context, TYPES[array.dtype.name], array.size)
        self._place(tensor, array)
        return lib["view_4d"](self._context, tensor, *array.shape[::-1], *array.strides[-2::-1], 0)

    def __del__(self):
        for buffer in self._buffers:
            library()["backend_buffer_free"](buffer)
        library()["free"](self._context)


class FlashAttention:
    """call(i) computes set i: an f16 cache where it lies, q and the result in f32."""

    def __init__(self, sets, threads):
        lib = library()
        self._graphs = [Graph(contiguous(q, np.float32), k, v) for q, k, v in sets]
        self._backend, self._pool = backend(threads)
        self.ran = "avx512" if lib["cpu_has_avx512"]() else "avx2" if lib["cpu_has_avx2"]() else ""

    def __call__(self, i):
        library()["backend_graph_compute"](self._backend, self._graphs[i].graph)
        return self._graphs[i].out

    def rest(self):
        """Its threads would spin on for a tenth of a second, into the turn of others."""
        library()["threadpool_pause"](self._pool)
