"""DLPack tensors made by hand, for what no library exports."""

import ctypes


class ManagedTensor(ctypes.Structure):
    """DLPack's DLManagedTensor."""

    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
                ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Exporter:
    """A NumPy array's memory as a DLPack tensor whose fields `changes` replaces."""

    def __init__(self, array, code=2, **changes):
        self.array = array  # keeps the memory
        fields = dict(data=array.ctypes.data, device=(1, 0), ndim=array.ndim, code=code,
                      bits=8 * array.itemsize, lanes=1, shape=array.shape, strides=None)
        fields.update(changes)
        for name in ("shape", "strides"):
            extents = fields[name]
            fields[name] = extents and (ctypes.c_int64 * len(extents))(*extents)
        fields["device"] = (ctypes.c_int32 * 2)(*fields["device"])
        self.tensor = ManagedTensor(**fields)

    def __dlpack__(self):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p,
                                                       ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), b"dltensor", None)
