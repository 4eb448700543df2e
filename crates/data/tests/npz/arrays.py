"""Arrays of all element types, as NumPy writes them: the bytes that `tests/files.rs` expects of `save_npz`.

    python arrays.py             # writes arrays.npz; needs numpy
    python arrays.py check FILE  # compares FILE, which `save_npz` wrote, or a .npy file of the array f4
"""

import os
import sys

import numpy as np

ARRAYS = {
    "f4": np.arange(6, dtype="f4").reshape(2, 3) / 4,
    "f8": np.array([0.1, -2.5]),
    "f2": np.array([[[1.5]], [[-0.25]]], dtype="f2"),
    "i8": np.array(-7, dtype="i8"),
    "i4": np.array([1 << 30, -1], dtype="i4"),
    "u1": np.arange(5, dtype="u1"),
    "b1": np.array([[True, False]]),
    "empty": np.zeros((0, 3), dtype="f4"),
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["check"]:
        found = np.load(sys.argv[2])
        found = {"f4": found} if isinstance(found, np.ndarray) else dict(found)
        for name, array in found.items():
            assert array.dtype == ARRAYS[name].dtype and array.shape == ARRAYS[name].shape, name
            assert np.array_equal(array, ARRAYS[name]), name
        print(f"{len(found)} arrays are as expected")
    else:
        np.savez(os.path.join(os.path.dirname(os.path.abspath(__file__)), "arrays.npz"), **ARRAYS)
