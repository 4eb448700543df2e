// Packs of V neighboring elements, read and written at once, as numbers of the computing type.

template <typename Type> INLINE void read_pack(const Type* from, R (&to)[V]) {
    Pack<Type, V> pack = *reinterpret_cast<const Pack<Type, V>*>(from);
    #pragma unroll
    for (int v = 0; v < V; v++) to[v] = real(pack.at[v]);
}

template <typename Type> INLINE void write_pack(Type* y, const R (&from)[V]) {
    Pack<Type, V> pack;
    #pragma unroll
    for (int v = 0; v < V; v++) pack.at[v] = to<Type>(from[v]);
    *reinterpret_cast<Pack<Type, V>*>(y) = pack;
}

#if __CUDA_ARCH__ >= 800
// Converts two numbers at once: rounds as `to_bf16` does, but every NaN becomes the same NaN.
INLINE void write_pack(bf16* y, const f32 (&from)[V]) {
    Pack<bf16, V> pack;
    #pragma unroll
    for (int v = 0; v + 1 < V; v += 2) {
        u32 pair;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(from[v + 1]), "f"(from[v]));
        pack.at[v].bits = pair, pack.at[v + 1].bits = pair >> 16;
    }
    if constexpr (V % 2 == 1) pack.at[V - 1] = to_bf16(from[V - 1]);
    *reinterpret_cast<Pack<bf16, V>*>(y) = pack;
}
#endif
