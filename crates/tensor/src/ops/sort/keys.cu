// An unsigned number with the same order as an element.
INLINE u32 key_of(f32 x) {
    u32 bits = __float_as_uint(x == f32(0) ? f32(0) : x);
    return x != x ? ~0u : bits >> 31 ? ~bits : bits | 1u << 31;
}
INLINE u64 key_of(f64 x) {
    u64 bits = u64(__double_as_longlong(x == f64(0) ? f64(0) : x));
    return x != x ? ~0ull : bits >> 63 ? ~bits : bits | 1ull << 63;
}
INLINE u32 key_of(i32 x) { return u32(x) ^ 1u << 31; }
INLINE u64 key_of(i64 x) { return u64(x) ^ 1ull << 63; }
typedef decltype(key_of(R())) Key;

INLINE Key key_of(T x, bool descending) { return descending ? ~key_of(real(x)) : key_of(real(x)); }
