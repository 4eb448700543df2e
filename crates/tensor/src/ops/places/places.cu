// y[ends[i] - 1] = i where mask[i].   y: as many as are true; mask: n truth values; ends[i]: how many are true up to i and with it.

extern "C" __global__ void places(i64* y, const bool* mask, const i64* ends, u64 n) {
    begin();
    u64 i = wide_thread_number();
    if (i < n && mask[i]) y[ends[i] - 1] = i;
}
