// y[.., row, column] = x[.., row, column] on one side of a diagonal, else 0.   x, y: [.., rows, columns], contiguous.

// `cuda.rs` defines V, the elements of a pack. V divides columns, and both tensors are aligned to packs.

// Keeps column <= row + diagonal if `is_lower`, else column >= row + diagonal.
struct Triangle { u64 elements, rows, columns; i64 diagonal; u64 is_lower; };

// Copies the pack at `at`, which is read only if some of it is kept.
template <typename Number> INLINE void keep_triangle(T* y, const T* x, Number at, const Triangle& g) {
    Number line = at / Number(g.columns);
    i64 first = at - line * Number(g.columns), middle = i64(line % Number(g.rows)) + g.diagonal;
    Pack<T, V> pack;
    bool is_empty = g.is_lower ? first > middle : first + V <= middle;
    if (!is_empty) pack = *reinterpret_cast<const Pack<T, V>*>(x + at);
    for (int v = 0; v < V; v++) {
        i64 column = first + v;
        if (is_empty || (g.is_lower ? column > middle : column < middle)) pack.at[v] = to<T>(R(0));
    }
    *reinterpret_cast<Pack<T, V>*>(y + at) = pack;
}

// One thread per pack.
extern "C" __global__ void triangle(T* y, const T* x, Triangle g) {
    begin();
    u64 at = wide_thread_number() * V;
    if (at >= g.elements) return;
    if (g.elements < 1ull << 31) keep_triangle<u32>(y, x, at, g);
    else keep_triangle<u64>(y, x, at, g);
}
