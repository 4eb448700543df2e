"""What PyTorch's buffers and copies cost on the GPU: the other half of `cargo bench -p pagelock-cuda --bench copies`.

The same figures with the same names, each the best of seven rounds. Run both in turn on an otherwise idle machine.
"""

import time

import torch

ROUNDS = 7
LARGE = 256 << 20


def nanos(calls, work):
    """Nanoseconds for one call, in the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(calls):
            work()
        best = min(best, time.perf_counter() - start)
    return best / calls * 1e9


def show(name, value, unit):
    print(f"{name:<52} {value:>10.2f} {unit}", flush=True)


def cached_blocks():
    def take(len_bytes, **where):
        return lambda: torch.empty(len_bytes, dtype=torch.uint8, **where)

    for work in (take(4_000, device="cuda"), take(4_000, pin_memory=True)):
        work()
    show("allocate and drop a cached device buffer, 4 kB", nanos(20_000, take(4_000, device="cuda")), "ns")
    show("allocate and drop a cached device buffer, 40 MB", nanos(20_000, take(40_000_000, device="cuda")), "ns")
    show("allocate and drop a pooled page-locked buffer, 4 kB", nanos(20_000, take(4_000, pin_memory=True)), "ns")


def small_copies():
    source = torch.zeros(4_000, dtype=torch.uint8, pin_memory=True)
    target = torch.zeros(4_000, dtype=torch.uint8, device="cuda")
    event = torch.cuda.Event()

    def up_and_back():
        target.copy_(source, non_blocking=True)
        event.record()
        event.synchronize()

    show("upload 4 kB and wait for the ticket", nanos(2_000, up_and_back) / 1e3, "us")
    show("queue an upload of 4 kB and drop the ticket", nanos(2_000, lambda: target.copy_(source, non_blocking=True)) / 1e3, "us")
    torch.cuda.synchronize()


def large_copies():
    up, down = torch.cuda.Stream(), torch.cuda.Stream()
    source = torch.zeros(LARGE, dtype=torch.uint8, pin_memory=True)
    room = torch.zeros(LARGE, dtype=torch.uint8, pin_memory=True)
    target, origin = (torch.zeros(LARGE, dtype=torch.uint8, device="cuda") for _ in range(2))
    torch.cuda.synchronize()

    def upload():
        with torch.cuda.stream(up):
            target.copy_(source, non_blocking=True)

    def download():
        with torch.cuda.stream(down):
            room.copy_(origin, non_blocking=True)

    def waited(*copies):
        def work():
            for copy in copies:
                copy()
            torch.cuda.synchronize()

        return LARGE * len(copies) / nanos(1, work)

    show("upload 256 MiB from page-locked memory", waited(upload), "GB/s")
    show("download 256 MiB to page-locked memory", waited(download), "GB/s")
    show("both at once, sum", waited(upload, download), "GB/s")


def page_locking():
    gib = 1 << 30
    best = float("inf")
    for _ in range(ROUNDS):
        torch._C._host_emptyCache()
        start = time.perf_counter()
        torch.empty(gib, dtype=torch.uint8, pin_memory=True)
        best = min(best, time.perf_counter() - start)
    show("page-lock 1 GiB", best * 1e3, "ms")
    show("take a pooled, page-locked GiB", nanos(1, lambda: torch.empty(gib, dtype=torch.uint8, pin_memory=True)) / 1e3, "us")


if __name__ == "__main__":
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    cached_blocks()
    small_copies()
    large_copies()
    page_locking()
