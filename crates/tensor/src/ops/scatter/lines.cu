// A tensor y as lines along an indexed dimension, and the lines of another tensor x and of an index that belong to
// them.

#define EVERYONE 0xffffffffu
#define WARP 32

// All other dimensions, the innermost first: their sizes in x, and their strides in y, in the index and in x.
struct Lines {
    u64 lines, rank;
    u64 size[MAX_RANK], stride[MAX_RANK][3];
    u64 y_len, x_len, step[3]; // along the indexed dimension
};

// Where a line begins in y, in the index and in x; and the number of its line of the index, which other lines can share.
struct Offsets { u64 y, index, x, index_line; };
INLINE Offsets offsets_of_line(const Lines& g, u64 line) {
    Offsets at = {0, 0, 0, 0};
    u64 index_lines = 1;
    for (u64 dim = 0; dim < g.rank; dim++) {
        u64 i = line % g.size[dim];
        line /= g.size[dim];
        at.y += i * g.stride[dim][0], at.index += i * g.stride[dim][1], at.x += i * g.stride[dim][2];
        if (g.stride[dim][1] != 0) at.index_line += i * index_lines, index_lines *= g.size[dim];
    }
    return at;
}

// Moves the pointers to a line.
INLINE void find_line(const Lines& g, u64 line, O*& y, const i64*& index, const T*& x) {
    Offsets at = offsets_of_line(g, line);
    y += at.y, index += at.index, x += at.x;
}

// Element `number` of a line of x: its offsets in the index and in x, and the offset of its line in y.
struct Element { u64 number, y, index, x; bool is_inside; };
INLINE Element element_of(const Lines& g, u64 lines_first) {
    u64 id = wide_thread_number(), line = lines_first ? id % g.lines : id / g.x_len;
    u64 number = lines_first ? id / g.lines : id % g.x_len;
    Offsets at = offsets_of_line(g, line);
    return {number, at.y, at.index + number * g.step[1], at.x + number * g.step[2], id < g.lines * g.x_len};
}

// Combines an element of y with an element of x.
struct Last { INLINE R of(R, R b) { return b; } };
struct Sum { INLINE R of(R a, R b) { return rounded(plus(a, b)); } };
struct Product { INLINE R of(R a, R b) { return times(a, b); } };
struct Largest { INLINE R of(R a, R b) { return a > b || is_nan(a) ? a : b; } };
struct Smallest { INLINE R of(R a, R b) { return a < b || is_nan(a) ? a : b; } };
