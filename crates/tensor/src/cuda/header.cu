// The header of every kernel: element types, computing types, conversions, packs, strided positions.
//
// Before this text the host writes `#define T f32` and `#define O f32`: the element types of the inputs and of the
// output. `R`, the type that inputs compute in, is the same as on the CPU: `f32` for the half types, else `T` itself.
// Arithmetic is not contracted to fused multiply-adds, so it rounds where the CPU's does.

#pragma nv_diag_error 47    // a macro that is defined twice
#pragma nv_diag_suppress 177 // not every kernel uses every function

typedef unsigned char u8;
typedef int i32;
typedef unsigned u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
struct f16 { unsigned short bits; };
struct bf16 { unsigned short bits; };

#define INLINE static __device__ __forceinline__
#define INFINITY __int_as_float(0x7f800000)

// A kernel calls this first. It lets the next kernel of the stream start beside this one, and waits until the one
// before has ended. A kernel that does so is launched early (`KernelFunction::with_dependent_launch`). In a large
// grid, launch_dependents would halve the rate at which blocks start.
INLINE void begin() {
#if __CUDA_ARCH__ >= 900
    if (gridDim.x * gridDim.y * gridDim.z <= 1024) asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- computing types ----------------------------------------------------------------------------------------------

template <typename Type> struct Computing { typedef Type In; };
template <> struct Computing<f16> { typedef f32 In; };
template <> struct Computing<bf16> { typedef f32 In; };

typedef Computing<T>::In R;

template <typename Type> INLINE Type real(Type x) { return x; }
INLINE f32 real(f16 x) { f32 y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
INLINE f32 real(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }

// ---- conversions: those of Rust's `as`, to the nearest even, floats to integers by truncation, saturating ----------

// Converts to f32 such that rounding again, to fewer digits, gives what rounding once would have given.
INLINE f32 round_to_odd(f64 x) {
    f32 y = __double2float_rz(x);
    return f64(y) != x && x == x ? __uint_as_float(__float_as_uint(y) | 1) : y;
}
INLINE f16 to_f16(f32 x) { f16 y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); return y; }
INLINE bf16 to_bf16(f32 x) {
    u32 bits = __float_as_uint(x);
    bf16 y;
    y.bits = x == x ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : bits >> 16 | 0x40;
    return y;
}
INLINE i64 truncated(f64 x) { // cvt does not define the result for NaN
    return x != x ? 0 : x >= 9223372036854775808.0 ? 9223372036854775807ll
         : x <= -9223372036854775808.0 ? -9223372036854775807ll - 1 : i64(x);
}
template <typename I> INLINE I clamped(f64 x, I lowest, I highest) {
    return x != x ? I(0) : x >= f64(highest) ? highest : x <= f64(lowest) ? lowest : I(x);
}

template <typename To> struct Converted;
template <> struct Converted<f32> {
    template <typename From> INLINE f32 of(From x) { return f32(x); }
};
template <> struct Converted<f64> {
    template <typename From> INLINE f64 of(From x) { return f64(x); }
};
template <> struct Converted<f16> {
    INLINE f16 of(f32 x) { return to_f16(x); }
    INLINE f16 of(bool x) { return to_f16(x ? 1 : 0); }
    template <typename From> INLINE f16 of(From x) { return to_f16(round_to_odd(f64(x))); }
};
template <> struct Converted<bf16> {
    INLINE bf16 of(f32 x) { return to_bf16(x); }
    INLINE bf16 of(bool x) { return to_bf16(x ? 1 : 0); }
    template <typename From> INLINE bf16 of(From x) { return to_bf16(round_to_odd(f64(x))); }
};
template <> struct Converted<i64> {
    INLINE i64 of(f32 x) { return truncated(x); }
    INLINE i64 of(f64 x) { return truncated(x); }
    template <typename From> INLINE i64 of(From x) { return i64(x); }
};
template <> struct Converted<i32> {
    INLINE i32 of(f32 x) { return clamped<i32>(x, -2147483647 - 1, 2147483647); }
    INLINE i32 of(f64 x) { return clamped<i32>(x, -2147483647 - 1, 2147483647); }
    template <typename From> INLINE i32 of(From x) { return i32(x); }
};
template <> struct Converted<u8> {
    INLINE u8 of(f32 x) { return clamped<u8>(x, 0, 255); }
    INLINE u8 of(f64 x) { return clamped<u8>(x, 0, 255); }
    template <typename From> INLINE u8 of(From x) { return u8(x); }
};
template <> struct Converted<bool> {
    template <typename From> INLINE bool of(From x) { return x != From(0); }
};

template <typename To, typename From> INLINE To to(From x) { return Converted<To>::of(x); }

// A value of R as an element would hold it: rounded, for the half types.
INLINE R rounded(R x) { return real(to<T>(x)); }

// A constant that the host passes as the bytes of an R.
INLINE void from_bits(u64 bits, f32& x) { x = __uint_as_float(u32(bits)); }
INLINE void from_bits(u64 bits, f64& x) { x = __longlong_as_double(i64(bits)); }
INLINE void from_bits(u64 bits, i64& x) { x = i64(bits); }
INLINE void from_bits(u64 bits, i32& x) { x = i32(bits); }
INLINE void from_bits(u64 bits, u8& x) { x = u8(bits); }
INLINE void from_bits(u64 bits, bool& x) { x = bits != 0; }
INLINE R constant(u64 bits) { R x; from_bits(bits, x); return x; }

// A constant in the type that results are computed in.
typedef Computing<O>::In Q;
INLINE Q result_constant(u64 bits) { Q x; from_bits(bits, x); return x; }

// ---- arithmetic, named as in `element.rs`; integers wrap -----------------------------------------------------------

template <typename Type> INLINE Type plus(Type a, Type b) { return a + b; }
template <typename Type> INLINE Type minus(Type a, Type b) { return a - b; }
template <typename Type> INLINE Type times(Type a, Type b) { return a * b; }
INLINE i32 plus(i32 a, i32 b) { return i32(u32(a) + u32(b)); }
INLINE i32 minus(i32 a, i32 b) { return i32(u32(a) - u32(b)); }
INLINE i32 times(i32 a, i32 b) { return i32(u32(a) * u32(b)); }
INLINE i64 plus(i64 a, i64 b) { return i64(u64(a) + u64(b)); }
INLINE i64 minus(i64 a, i64 b) { return i64(u64(a) - u64(b)); }
INLINE i64 times(i64 a, i64 b) { return i64(u64(a) * u64(b)); }
INLINE bool plus(bool a, bool b) { return a || b; }
INLINE bool times(bool a, bool b) { return a && b; }

template <typename Type> INLINE bool is_nan(Type x) { return x != x; }
template <typename Type> INLINE Type negated(Type x) { return minus(Type(0), x); }
INLINE f32 negated(f32 x) { return -x; } // also of zero
INLINE f64 negated(f64 x) { return -x; }
template <typename Type> INLINE Type magnitude(Type x) { return x < Type(0) ? negated(x) : x; }
INLINE f32 magnitude(f32 x) { return fabsf(x); }
INLINE f64 magnitude(f64 x) { return fabs(x); }

// Whether the quotient by an integer may not fit the type. No unsigned number is -1.
template <typename Type> INLINE bool is_minus_one(Type b) { return Type(-1) < Type(0) && negated(b) == Type(1); }

// Remainders with the sign of the dividend and of the divisor, and the quotient rounded down. They are 0 for an
// integer divided by 0.
template <typename Type> INLINE Type fmod_of(Type a, Type b) { return b == Type(0) || is_minus_one(b) ? Type(0) : a % b; }
INLINE f32 fmod_of(f32 a, f32 b) { return fmodf(a, b); }
INLINE f64 fmod_of(f64 a, f64 b) { return fmod(a, b); }
template <typename Type> INLINE Type remainder_of(Type a, Type b) {
    Type rest = fmod_of(a, b);
    return rest != Type(0) && (rest < Type(0)) != (b < Type(0)) ? plus(rest, b) : rest;
}
template <typename Type> INLINE Type floor_div(Type a, Type b) {
    if (b == Type(0)) return Type(0);
    if (is_minus_one(b)) return negated(a); // wraps for the least number, which has no counterpart
    Type rest = a % b;
    return a / b - (rest != Type(0) && (rest < Type(0)) != (b < Type(0)) ? Type(1) : Type(0));
}
template <typename Type> INLINE Type floor_div_real(Type a, Type b) {
    Type rest = fmod_of(a, b);
    Type quotient = (a - rest) / b - (rest != Type(0) && (rest < Type(0)) != (b < Type(0)) ? Type(1) : Type(0));
    Type below = floor(quotient);
    Type nearest = quotient - below > Type(0.5) ? below + Type(1) : below;
    return b == Type(0) ? a / b : quotient == Type(0) ? (a / b) * Type(0) : nearest;
}
INLINE f32 floor_div(f32 a, f32 b) { return floor_div_real(a, b); }
INLINE f64 floor_div(f64 a, f64 b) { return floor_div_real(a, b); }

template <typename Type> INLINE Type sigmoid(Type x) { return Type(1) / (Type(1) + exp(-x)); }

// eˣ of an f32, precise enough for a result of the type Stored. Halves use the device's own instruction, whose error
// is a hundredth of their last place.
template <typename Stored, typename Type> INLINE Type exp_for(Type x) {
    if constexpr (sizeof(Stored) == 2 && sizeof(Type) == 4) {
        f32 y;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(f32(x) * f32(1.4426950408889634)));
        return y;
    } else {
        return exp(x);
    }
}

// tanh. If the result becomes a half, it uses the device's own instructions, which give 22 bits of the fraction.
template <typename Type> INLINE Type rough_tanh(Type x) {
    if constexpr (sizeof(O) == 2 && sizeof(Type) == 4) {
        return Type(1) - Type(__fdividef(f32(2), exp_for<O>(f32(2) * f32(x)) + f32(1)));
    } else {
        return tanh(x);
    }
}

// The distribution function of the normal distribution, and `bell`, e^(−x²/2). In f32 it is `bell` times a polynomial
// of 1 / (1 + 0.35 · |x|), fitted by least squares to 3e-8. The rounding error of the square is corrected. `bell` is
// 0 from |x| = 15 on.
INLINE f64 normal(f64 x, f64& bell) {
    bell = exp(x * x * -0.5);
    return 0.5 * erfc(x * -0.7071067811865475244);
}
INLINE f32 normal(f32 x, f32& bell) {
    f32 y = fminf(fabsf(x), 15), square = y * y, rest = __fmaf_rn(y, y, -square);
    bell = exp(square * -0.5f);
    bell = __fmaf_rn(bell, rest * -0.5f, bell);
    f32 t = __fdividef(1, __fmaf_rn(0.35f, y, 1)), p = -0.05831605941057205f;
    p = __fmaf_rn(p, t, 0.2880632281303406f);
    p = __fmaf_rn(p, t, -0.5116807818412781f);
    p = __fmaf_rn(p, t, 0.3186424970626831f);
    p = __fmaf_rn(p, t, -0.04642678424715996f);
    p = __fmaf_rn(p, t, 0.2111058533191681f);
    p = __fmaf_rn(p, t, 0.23964236676692963f);
    p = __fmaf_rn(p, t, 0.2797270715236664f);
    p = __fmaf_rn(p, t, 0.279242604970932f);
    f32 beyond = bell * t * p * 0.5f; // Φ(−y)
    return x <= 0 ? beyond : 1 - beyond;
}

// ln(1 + eˣ) for x ≤ 0. In f32 by the series of the inverse hyperbolic tangent: ln(1 + u) = 2 · artanh(u / (2 + u)).
INLINE f64 log1p_exp(f64 x) { return log1p(exp(x)); }
INLINE f32 log1p_exp(f32 x) {
    f32 u = exp(x), s = __fdividef(u, 2 + u), square = s * s, p = 2.0f / 13;
    p = __fmaf_rn(p, square, 2.0f / 11);
    p = __fmaf_rn(p, square, 2.0f / 9);
    p = __fmaf_rn(p, square, 2.0f / 7);
    p = __fmaf_rn(p, square, 2.0f / 5);
    p = __fmaf_rn(p, square, 2.0f / 3);
    return s * __fmaf_rn(p, square, 2);
}

// Whether `a` is larger; NaN is larger than all numbers.
template <typename Type> INLINE bool is_better(Type a, Type b) { return a > b || (is_nan(a) && !is_nan(b)); }

// Whether `a` is smaller; NaN is smaller than all numbers.
template <typename Type> INLINE bool is_less(Type a, Type b) { return a < b || (is_nan(a) && !is_nan(b)); }

// The smallest and the largest value of R.
template <typename Type> struct Limits {
    INLINE Type lowest() { return -INFINITY; }
    INLINE Type highest() { return INFINITY; }
};
template <> struct Limits<i64> {
    INLINE i64 lowest() { return -9223372036854775807ll - 1; }
    INLINE i64 highest() { return 9223372036854775807ll; }
};
template <> struct Limits<i32> {
    INLINE i32 lowest() { return -2147483647 - 1; }
    INLINE i32 highest() { return 2147483647; }
};
template <> struct Limits<u8> {
    INLINE u8 lowest() { return 0; }
    INLINE u8 highest() { return 255; }
};
#define LOWEST Limits<R>::lowest()
#define HIGHEST Limits<R>::highest()

// ---- packs: 16 bytes at once ---------------------------------------------------------------------------------------

template <typename Type, int V> struct __align__(sizeof(Type) * V) Pack { Type at[V]; };

// ---- positions in strided tensors ----------------------------------------------------------------------------------

// The most dimensions, and the most tensors that a kernel indexes together: the output and three inputs.
#define MAX_RANK 8
#define MAX_OPERANDS 4

// Dimensions, the innermost first. Divisions by sizes are multiplications: i / size = (mulhi(i, magic) + i) >> shift
// for i < 2^31 (Granlund and Montgomery 1994).
struct Indexing {
    u32 n;
    u32 rank;
    u32 size[MAX_RANK];
    u32 magic[MAX_RANK];
    u32 shift[MAX_RANK];
    u32 stride[MAX_RANK][MAX_OPERANDS];
};

// Indexing of tensors of 2^31 elements and more.
struct WideIndexing {
    u64 n;
    u64 rank;
    u64 size[MAX_RANK];
    u64 stride[MAX_RANK][MAX_OPERANDS];
};

// Where element `i` is in each of the first OPERANDS tensors.
template <int OPERANDS> INLINE void positions(const Indexing& indexing, u32 i, u32 (&at)[OPERANDS]) {
    for (int k = 0; k < OPERANDS; k++) at[k] = 0;
    for (u32 dim = 0; dim + 1 < indexing.rank; dim++) {
        u32 outer = (__umulhi(i, indexing.magic[dim]) + i) >> indexing.shift[dim];
        u32 index = i - outer * indexing.size[dim];
        for (int k = 0; k < OPERANDS; k++) at[k] += index * indexing.stride[dim][k];
        i = outer;
    }
    if (indexing.rank > 0)
        for (int k = 0; k < OPERANDS; k++) at[k] += i * indexing.stride[indexing.rank - 1][k];
}
template <int OPERANDS> INLINE void positions(const WideIndexing& indexing, u64 i, u64 (&at)[OPERANDS]) {
    for (int k = 0; k < OPERANDS; k++) at[k] = 0;
    for (u64 dim = 0; dim < indexing.rank; dim++) {
        u64 outer = i / indexing.size[dim];
        u64 index = i - outer * indexing.size[dim];
        for (int k = 0; k < OPERANDS; k++) at[k] += index * indexing.stride[dim][k];
        i = outer;
    }
}

INLINE u32 thread_number() { return blockIdx.x * blockDim.x + threadIdx.x; }
INLINE u64 wide_thread_number() { return u64(blockIdx.x) * blockDim.x + threadIdx.x; }
