// Sets several numbers that steps read: x[first + i] = value[i] for i < n.

#define NUMBERS 8 // of one launch, at most

struct Settings { u64 first, n; f64 value[NUMBERS]; };

extern "C" __global__ void set(T* x, Settings settings) {
    begin();
    if (threadIdx.x < settings.n) x[settings.first + threadIdx.x] = settings.value[threadIdx.x];
}
