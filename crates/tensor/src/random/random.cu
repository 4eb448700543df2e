// Random numbers as in `random.rs` and `fill.rs`, bit for bit: functions of seed, stream and position alone.
//
// Counters come in blocks of LANES; a counter gives one number to each row of its block. One thread per counter.

#define LANES 16

typedef R Real;
#define IS_DOUBLE (sizeof(Real) == 8)
#define NUMBERS (IS_DOUBLE ? 2 : 4) // of a counter

struct Words { u32 at[4]; };

INLINE Words philox(u64 seed, u64 position, u64 stream) {
    Words x = {{u32(position), u32(position >> 32), u32(stream), u32(stream >> 32)}};
    u32 key0 = u32(seed), key1 = u32(seed >> 32);
    #pragma unroll
    for (int round = 0; round < 10; round++) {
        u64 a = u64(0xD2511F53u) * x.at[0], b = u64(0xCD9E8D57u) * x.at[2];
        x = {{u32(b >> 32) ^ x.at[1] ^ key0, u32(b), u32(a >> 32) ^ x.at[3] ^ key1, u32(a)}};
        key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
    }
    return x;
}

// The position of the numbers. When a captured step is launched again, `shift` leads to where the generator is then.
INLINE u64 shifted(u64 position, const u64* shift) { return position + (shift ? *shift : 0); }

// Uniform in [0, 1), with as many bits as fit.
INLINE void units(const Words& words, f32 (&x)[4]) {
    for (int i = 0; i < 4; i++) x[i] = f32(words.at[i] >> 8) / 16777216.0f;
}
INLINE void units(const Words& words, f64 (&x)[2]) {
    for (int i = 0; i < 2; i++)
        x[i] = f64((u64(words.at[2 * i + 1]) << 32 | words.at[2 * i]) >> 11) / 9007199254740992.0;
}

// The natural logarithm as in `math/f32.rs` and `math/f64.rs`, for normal numbers up to 1: `fma` where they have `mul_add`.
INLINE f32 ln(f32 x) {
    u32 bits = __float_as_uint(x) - 0x3f3504f3u;
    f32 k = f32(i32(bits) >> 23);
    f32 f = __uint_as_float((bits & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    f32 s = f / (2.0f + f);
    f32 z = s * s;
    f32 r = __fmaf_rn(__fmaf_rn(2.987442e-1f, z, 3.997745e-1f), z, 6.6666776e-1f);
    f32 less = s * __fmaf_rn(-z, r, f);
    return __fmaf_rn(k, 0.6933594f, f - __fmaf_rn(-k, -2.1219444e-4f, less));
}
INLINE f64 ln(f64 x) {
    u64 bits = u64(__double_as_longlong(x)) - 0x3fe6a09e667f3bcdull;
    f64 k = f64(i64(bits) >> 52);
    f64 f = __longlong_as_double(i64((bits & 0x000fffffffffffffull) + 0x3fe6a09e667f3bcdull)) - 1.0;
    f64 s = f / (2.0 + f);
    f64 z = s * s;
    f64 w = z * z, even = 1.4799066108059503e-1, odd = 1.5313755752712596e-1;
    even = __fma_rn(even, w, 1.8183575166059565e-1);
    odd = __fma_rn(odd, w, 2.2222198378459493e-1);
    even = __fma_rn(even, w, 2.857142874414164e-1);
    odd = __fma_rn(odd, w, 3.999999999940749e-1);
    even = __fma_rn(even, w, 6.666666666666735e-1);
    f64 r = __fma_rn(odd, z, even);
    f64 less = __fma_rn(s, __fma_rn(-z, r, f), -k * 1.9082149292705877e-10);
    return __fma_rn(k, 0.6931471803691238, f - less);
}

// sin(2πt) and cos(2πt) for t from −½ to ½.
template <typename Float> INLINE void sin_cos_turns(Float t, Float& sin, Float& cos) {
    constexpr int TERMS = sizeof(Float) == 8 ? 11 : 6;
    bool is_left = magnitude(t) > Float(0.25);
    Float mirrored = t > 0 ? Float(0.5) - t : Float(-0.5) - t;
    Float x = (is_left ? mirrored : t) * Float(6.283185307179586);
    Float s = 1, c = 1;
    #pragma unroll
    for (int k = 0; k < TERMS; k++) {
        constexpr double one = 1.0;
        double even = 2 * (TERMS - k);
        s = Float(1) - x * x * Float(one / (even * (even + one))) * s;
        c = Float(1) - x * x * Float(one / (even * (even - one))) * c;
    }
    sin = x * s;
    cos = is_left ? -c : c;
}

// Two uniform numbers make two normal ones.
template <int N> INLINE void normals(Real (&x)[N]) {
    for (int pair = 0; pair < N; pair += 2) {
        Real radius = sqrt(Real(-2) * ln(Real(1) - x[pair])), sin, cos;
        sin_cos_turns(x[pair + 1] - Real(0.5), sin, cos);
        x[pair] = radius * cos;
        x[pair + 1] = radius * sin;
    }
}

// Half types round numbers near 1 up to 1, which is outside the range.
INLINE T below_one(Real x) {
    T y = to<T>(x);
    return real(y) < R(1) ? y : to<T>(R(1.0 - 1.0 / 256.0));
}

// Calls write(index, row) for the elements that a counter's numbers become: one in each row of its block.
template <typename Write> INLINE void for_each_number(u64 n, u64 counter, Write write) {
    u64 at = counter / LANES * (LANES * NUMBERS) + counter % LANES;
    for (int row = 0; row < NUMBERS; row++, at += LANES)
        if (at < n) write(at, row);
}
#ifdef KERNEL_uniform
extern "C" __global__ void uniform(T* y, u64 n, u64 seed, u64 position, const u64* shift, u64 stream) {
    begin();
    u64 counter = wide_thread_number();
    Real x[NUMBERS];
    units(philox(seed, shifted(position, shift) + counter, stream), x);
    for_each_number(n, counter, [&](u64 at, int row) { y[at] = below_one(x[row]); });
}
#endif
#ifdef KERNEL_normal
extern "C" __global__ void normal(T* y, u64 n, u64 seed, u64 position, const u64* shift, u64 stream) {
    begin();
    u64 counter = wide_thread_number();
    Real x[NUMBERS];
    units(philox(seed, shifted(position, shift) + counter, stream), x);
    normals(x);
    for_each_number(n, counter, [&](u64 at, int row) { y[at] = to<T>(x[row]); });
}
#endif
