// Indices that are out of range. The host cannot be told at once: it finds a note when it next reads from the device.

// The note of the first thread that finds one: the number of the call, which the host counts from 1, and the index.
struct Fault { u64 site; i64 index; };

// Whether an element has this index. If none has, notes the fault.
INLINE bool exists(i64 index, u64 size, Fault* fault, u64 site) {
    if (u64(index) < size) return true;
    if (atomicCAS(&fault->site, u64(0), site) == 0) fault->index = index;
    return false;
}

// The value that is read for an index out of range: NaN for floats, so that it is noticed.
INLINE T missing_value() { return to<T>(__int_as_float(0x7fc00000)); }
