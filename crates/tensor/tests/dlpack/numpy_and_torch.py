"""DLPack between this crate, PyTorch and NumPy, in one process: values, strides, types, who lives how long; on a GPU too, if PyTorch has one.

    python numpy_and_torch.py LIBRARY      # the built `library.rs`; needs torch and numpy, which ask for DLPack 1.0 (torch 2.9, numpy 2.1)
"""

import ctypes
import gc
import sys
import weakref

import numpy as np
import torch

library = ctypes.CDLL(sys.argv[1])
library.pagelock_error.restype = ctypes.c_char_p
library.pagelock_used.restype = ctypes.c_uint64
for name, arguments in {"take": [ctypes.c_bool] * 2, "give": [ctypes.c_bool] * 2, "view": [ctypes.c_bool]}.items():
    function = getattr(library, "pagelock_" + name)
    function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_void_p, *arguments]
library.pagelock_free.argtypes = [ctypes.c_void_p]
library.pagelock_refuse.argtypes = [ctypes.c_void_p, ctypes.c_bool]

python = ctypes.pythonapi
DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
python.PyCapsule_New.restype, python.PyCapsule_New.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, DESTRUCTOR]
python.PyCapsule_IsValid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
python.PyCapsule_GetPointer.restype, python.PyCapsule_GetPointer.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
python.PyCapsule_SetName.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
NAMES = {False: b"dltensor", True: b"dltensor_versioned"}  # which PyCapsule keeps a pointer to
USED = {False: b"used_dltensor", True: b"used_dltensor_versioned"}


@DESTRUCTOR
def destroy(capsule):
    """Of a capsule that nobody took the tensor from."""
    for is_versioned, name in NAMES.items():
        if python.PyCapsule_IsValid(capsule, name):
            library.pagelock_refuse(python.PyCapsule_GetPointer(capsule, name), is_versioned)


class Ours:
    """A tensor of ours, for `from_dlpack`."""

    def __init__(self, pointer, is_shared=False, device=(1, 0)):
        if not pointer:
            raise ValueError(library.pagelock_error().decode())
        self.pointer, self.is_shared, self.device = pointer, is_shared, device

    def __del__(self):
        if hasattr(self, "pointer"):
            library.pagelock_free(self.pointer)

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        is_versioned = max_version is not None and max_version >= (1, 0)
        given = library.pagelock_give(self.pointer, is_versioned, self.is_shared)
        if not given:
            raise BufferError(library.pagelock_error().decode())
        return python.PyCapsule_New(given, NAMES[is_versioned], destroy)


class Before1:
    """Asks for the struct before version 1, as older libraries do."""

    def __init__(self, ours):
        self.ours = ours

    def __dlpack_device__(self):
        return self.ours.__dlpack_device__()

    def __dlpack__(self, **_):
        return self.ours.__dlpack__()


def taken(array, is_versioned=True, is_shared=False):
    """Their array as a tensor of ours."""
    capsule = array.__dlpack__(max_version=(1, 0)) if is_versioned else array.__dlpack__()
    address = id(capsule)
    pointer = python.PyCapsule_GetPointer(address, NAMES[is_versioned])
    python.PyCapsule_SetName(address, USED[is_versioned])
    kind, ordinal = array.__dlpack_device__()
    return Ours(library.pagelock_take(pointer, is_versioned, is_shared), is_shared, (int(kind), ordinal))


def refusal(action):
    try:
        action()
    except (ValueError, BufferError) as error:
        return str(error)
    raise AssertionError("nothing was refused")


def same(found, wanted):
    assert found.dtype == wanted.dtype and tuple(found.shape) == tuple(wanted.shape), (found, wanted)
    assert found.tolist() == wanted.tolist(), (found, wanted)


def go_there_and_back(device):
    """Each type and layout: theirs to ours, ours to theirs; copied and shared; both structs."""
    base = torch.arange(24, device=device).reshape(2, 3, 4)
    layouts = [lambda x: x, lambda x: x.permute(2, 0, 1), lambda x: x[:, 1:, ::2], lambda x: x[1, 2, 3], lambda x: x[:, :0],
               lambda x: x[:1].expand(5, 3, 4), lambda x: x[:, 1]]
    dtypes = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int32, torch.int64, torch.bool]
    count = 0
    for dtype in dtypes:
        for layout in layouts:
            theirs = layout((base % 3 == 0) if dtype == torch.bool else base.to(dtype))
            has_numpy = device == "cpu" and dtype != torch.bfloat16
            for array in [theirs, theirs.numpy()] if has_numpy else [theirs]:
                for is_versioned in [True, False]:
                    ours = taken(array, is_versioned)
                    same(torch.from_dlpack(ours if is_versioned else Before1(ours)), theirs)
                    ours.is_shared = True
                    same(torch.from_dlpack(ours), theirs)
                    if array is not theirs:
                        same(np.from_dlpack(ours if is_versioned else Before1(ours)), array)
                    count += 1
    return count


def go_backwards():
    backwards = np.arange(6.0).reshape(2, 3)[::-1, ::-1]
    same(np.from_dlpack(taken(backwards)), backwards)


def share_one_memory():
    x = torch.arange(12.0).reshape(3, 4)
    ours = taken(x, is_shared=True)
    y = torch.from_dlpack(ours)
    assert y.data_ptr() == x.data_ptr()
    x[1, 2] = 100.0
    same(y, x)
    assert not np.from_dlpack(ours).flags.writeable, "what is shared with us is not written through us"
    assert "read-only" in refusal(lambda: torch.from_dlpack(Before1(ours)))

    copied = taken(x)
    copied.is_shared = True
    y, z = torch.from_dlpack(copied), np.from_dlpack(copied)
    assert y.data_ptr() == z.__array_interface__["data"][0] != x.data_ptr()
    y[0, 0] = -7.0
    assert z[0, 0] == -7.0 and z.flags.writeable

    moved = Ours(library.pagelock_view(copied.pointer, False), True)
    y = torch.from_dlpack(moved)
    assert y.shape == (4, 3) and y.stride() == (1, 4) and y.data_ptr() == z.__array_interface__["data"][0]
    expanded = Ours(library.pagelock_view(copied.pointer, True), True)
    z = np.from_dlpack(expanded)
    assert z.shape == (5, 3, 4) and z.strides == (0, 16, 4) and not z.flags.writeable


def live_as_long_as_they_are_needed():
    def used():
        gc.collect()
        return library.pagelock_used()

    before = used()
    ours = taken(torch.arange(100_000.0))
    kept = used() - before
    assert kept >= 400_000, kept
    ours.is_shared = True
    y = torch.from_dlpack(ours)
    part = y[99_000:]
    del ours, y
    assert used() - before == kept, "PyTorch has a view of it"
    assert part[999] == 99_999.0
    del part
    assert used() == before, "nobody has it any more"

    ours = taken(torch.arange(1000.0))
    for is_versioned in [True, False]:
        held = used()
        capsule = ours.__dlpack__(max_version=(1, 0) if is_versioned else None)
        assert used() > held
        del capsule
        assert used() == held, "a capsule that nobody took is given back"
    del ours

    array = np.arange(4096.0)
    gone = weakref.ref(array)
    ours = taken(array)
    del array
    gc.collect()
    assert gone() is None, "what was copied is given back at once"
    same(torch.from_dlpack(ours), torch.arange(4096.0, dtype=torch.float64))

    tensor = torch.arange(4096.0)
    ours = taken(tensor, is_shared=True)
    address = tensor.data_ptr()
    del tensor
    gc.collect()
    y = torch.from_dlpack(ours)
    del ours
    assert y.data_ptr() == address and y.sum() == 4095 * 2048
    del y
    assert used() == before


def refuse_what_no_tensor_has():
    for theirs, words in [(torch.zeros(3, dtype=torch.int8), "int8"), (torch.zeros(3, dtype=torch.int16), "int16"),
                          (torch.zeros(3, dtype=torch.complex64), "complex64"), (np.zeros(3, np.uint32), "uint32")]:
        said = refusal(lambda: taken(theirs))
        assert said.startswith("dlpack: ") and words in said, said
    unaligned = torch.arange(20.0)[1:]
    assert "multiple of 64 bytes" in refusal(lambda: taken(unaligned, is_shared=True))
    same(torch.from_dlpack(taken(unaligned)), unaligned)


def share_memory_of_a_gpu():
    """In the order of the device's work: `taken` copies, once what PyTorch queued on its own stream is done."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.ones(1 << 24, device="cuda")
        for _ in range(100):
            x = x * 1.0001
        stream.synchronize()
        ours = taken(x)
    ours.is_shared = True
    y, z = torch.from_dlpack(ours), torch.from_dlpack(ours)
    assert y.data_ptr() == z.data_ptr() != x.data_ptr() and torch.equal(y, x)
    y.add_(1.0)
    torch.cuda.synchronize()
    del ours, y
    assert torch.equal(z, x + 1.0), "PyTorch has a view of it"
    assert "on a device" in refusal(lambda: taken(x, is_shared=True))

    torch.cuda.synchronize()
    del z
    free = torch.cuda.mem_get_info()[0]
    for _ in range(200):  # 12.5 GiB in all
        y = torch.from_dlpack(taken(x))
        del y
    lost = free - torch.cuda.mem_get_info()[0]
    assert lost < 1 << 30, lost


counts = {"CPU": go_there_and_back("cpu")}
go_backwards()
share_one_memory()
live_as_long_as_they_are_needed()
refuse_what_no_tensor_has()
if torch.cuda.is_available():
    counts[torch.cuda.get_device_name()] = go_there_and_back("cuda")
    share_memory_of_a_gpu()
else:
    print("SKIPPED: PyTorch has no GPU here")
there = ", ".join(f"{count} on {device}" for device, count in counts.items())
print(f"torch {torch.__version__}, numpy {np.__version__}: tensors that went there and back: {there}")
