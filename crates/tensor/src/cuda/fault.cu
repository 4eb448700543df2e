// Indices that are out of range. The host cannot be told at once: it finds a note when it next reads from the device.

// What the first thread that finds one leaves: which call it was, as the host counts them from 1, and the index.
struct Fault { u64 site; i64 index; };

// Whether there is an element of that index; if not, that is noted.
INLINE bool exists(i64 index, u64 size, Fault* fault, u64 site) {
    if (u64(index) < size) return true;
    if (atomicCAS(&fault->site, u64(0), site) == 0) fault->index = index;
    return false;
}

// What is read where nothing is: NaN for floats, which does not stay unnoticed.
INLINE T nothing() { return to<T>(__int_as_float(0x7fc00000)); }
