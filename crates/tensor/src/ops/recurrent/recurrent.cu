// A step of a recurrent layer, and a step back: what follows the product with the state, one thread for each number of it.
//
// KIND: 0 tanh, 1 relu, 2 LSTM, 3 GRU. All tensors are contiguous; of_x, of_h, gates: [rows, G · hidden] for G gates, the states
// [rows, hidden]; `at` are elements before the first of a step. Rows below `carried` have their state before the step at
// `before`, in the result; the others in the first states, or zeros where there are none.

#define G (KIND == 2 ? 4 : KIND == 3 ? 3 : 1)

struct Step {
    u32 rows, hidden, carried, products; // rows below `products` have a product with the state
    u64 at, before;                      // rows
    u64 cells;                           // elements from h to c in the result
};

INLINE R state_before(const T* out, const T* first, const Step& s, u64 cells, u32 row, u32 j) {
    if (row < s.carried) return real(out[cells + (s.before + row) * s.hidden + j]);
    return first ? real(first[u64(row) * s.hidden + j]) : R(0);
}

#ifdef KERNEL_recurrent_step
extern "C" __global__ void recurrent_step(
    T* out, T* kept, T* inner, const T* of_x, const T* of_h, const T* bias, const T* h0, const T* c0, Step s
) {
    begin();
    u32 thread = thread_number(), row = thread / s.hidden, j = thread - row * s.hidden;
    if (row >= s.rows) return;
    R x[G], h[G];
    for (int g = 0; g < G; g++) {
        x[g] = real(of_x[((s.at + row) * G + g) * s.hidden + j]);
        h[g] = row < s.products ? real(of_h[(u64(row) * G + g) * s.hidden + j]) : R(0);
        if (bias) h[g] += real(bias[g * s.hidden + j]);
    }
    u64 place = (s.at + row) * s.hidden + j;
    R state;
    if (KIND == 0) state = tanh(x[0] + h[0]);
    if (KIND == 1) state = x[0] + h[0] < R(0) ? R(0) : x[0] + h[0];
    if (KIND == 2) {
        R i = sigmoid(x[0] + h[0]), f = sigmoid(x[1 % G] + h[1 % G]), c = tanh(x[2 % G] + h[2 % G]), o = sigmoid(x[3 % G] + h[3 % G]);
        R cell = f * state_before(out, c0, s, s.cells, row, j) + i * c;
        state = o * tanh(cell);
        out[s.cells + place] = to<T>(cell);
        x[0] = i, x[1 % G] = f, x[2 % G] = c, x[3 % G] = o;
    }
    if (KIND == 3) {
        R r = sigmoid(x[0] + h[0]), z = sigmoid(x[1 % G] + h[1 % G]), n = tanh(x[2 % G] + r * h[2 % G]);
        state = n + z * (state_before(out, h0, s, 0, row, j) - n);
        x[0] = r, x[1 % G] = z, x[2 % G] = n;
        if (kept) inner[place] = to<T>(h[2 % G]);
    }
    out[place] = to<T>(state);
    if (KIND >= 2 && kept)
        for (int g = 0; g < G; g++) kept[((s.at + row) * G + g) * s.hidden + j] = to<T>(x[g]);
}
#endif

// `products`: rows whose states have a gradient from the steps behind this one, of_state and c; a GRU's also in `direct`.
#ifdef KERNEL_recurrent_step_grad
extern "C" __global__ void recurrent_step_grad(
    T* of_x, T* of_h, T* c, T* direct, const T* grad, const T* of_state, const T* kept, const T* inner, const T* out,
    const T* h0, const T* c0, Step s
) {
    begin();
    u32 thread = thread_number(), row = thread / s.hidden, j = thread - row * s.hidden;
    if (row >= s.rows) return;
    u64 place = (s.at + row) * s.hidden + j, here = u64(row) * s.hidden + j;
    bool goes_on = row < s.products;
    R of = real(grad[place]) + (goes_on ? real(of_state[here]) : R(0));
    if (KIND == 3 && goes_on) of += real(direct[here]);
    R x[G], h[G];
    R gate[G];
    for (int g = 0; g < G; g++) gate[g] = KIND >= 2 ? real(kept[((s.at + row) * G + g) * s.hidden + j]) : R(0);
    if (KIND <= 1) {
        R y = real(out[place]);
        x[0] = KIND == 0 ? of * (R(1) - y * y) : y > R(0) ? of : R(0);
    }
    if (KIND == 2) {
        R i = gate[0], f = gate[1 % G], g = gate[2 % G], o = gate[3 % G], t = tanh(real(out[s.cells + place]));
        R of_c = real(grad[s.cells + place]) + (goes_on ? real(c[here]) : R(0)) + of * o * (R(1) - t * t);
        x[0] = of_c * g * i * (R(1) - i);
        x[1 % G] = of_c * state_before(out, c0, s, s.cells, row, j) * f * (R(1) - f);
        x[2 % G] = of_c * i * (R(1) - g * g);
        x[3 % G] = of * t * o * (R(1) - o);
        c[here] = to<T>(of_c * f);
    }
    if (KIND == 3) {
        R r = gate[0], z = gate[1 % G], n = gate[2 % G];
        R of_n = of * (R(1) - z) * (R(1) - n * n);
        x[0] = of_n * real(inner[place]) * r * (R(1) - r);
        x[1 % G] = of * (state_before(out, h0, s, 0, row, j) - n) * z * (R(1) - z);
        x[2 % G] = of_n;
        h[0] = x[0], h[1 % G] = x[1 % G], h[2 % G] = of_n * r;
        direct[here] = to<T>(of * z);
    }
    for (int g = 0; g < G; g++) {
        of_x[((s.at + row) * G + g) * s.hidden + j] = to<T>(x[g]);
        if (KIND == 3) of_h[((s.at + row) * G + g) * s.hidden + j] = to<T>(h[g]);
    }
}
#endif
