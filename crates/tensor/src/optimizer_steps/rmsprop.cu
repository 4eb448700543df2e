// RMSprop, `rmsprop.rs`. kept: square, mean (null unless centered), direction (with momentum).

struct Rule { f64 alpha, eps, momentum, centered; };
struct Now { R keep, new_share, eps, momentum, rate; bool centered; };

INLINE Now now_of(const Rule& rule, f64 lr, const f64*) {
    return {R(rule.alpha), R(1.0 - rule.alpha), R(rule.eps), R(rule.momentum), R(-lr), rule.centered != 0.0};
}

template <int KEPT> INLINE R step(const Now& now, R x, R g, R (&kept)[KEPT]) {
    kept[0] = kept[0] * now.keep + now.new_share * g * g;
    R square = kept[0];
    if constexpr (KEPT > 1) {
        if (now.centered) {
            kept[1] = kept[1] * now.keep + now.new_share * g;
            square = square - kept[1] * kept[1];
        }
    }
    R direction = g / (sqrt(square) + now.eps);
    if constexpr (KEPT == 3) direction = kept[2] = kept[2] * now.momentum + direction;
    return x + now.rate * direction;
}
