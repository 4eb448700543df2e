// ASGD, `asgd.rs`. kept: the average. clock: steps, eta, mu.

struct Rule { f64 lambd; };
struct Now { R shrink, rate, share; bool is_copied; };

INLINE Now now_of(const Rule& rule, f64, const f64* clock) {
    return {R(1.0 - rule.lambd * clock[1]), R(-clock[1]), R(clock[2]), clock[2] == 1.0};
}

INLINE R step(const Now& now, R x, R g, R (&kept)[1]) {
    x = x * now.shrink + g * now.rate;
    kept[0] = now.is_copied ? x : kept[0] + (x - kept[0]) * now.share;
    return x;
}
