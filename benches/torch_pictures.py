"""PyTorch's half of `compare_torch.py pictures`: JPEG files to tensors of bytes, one after another on one thread.

Prints one JSON object. Needs `torch`, `torchvision` and `pillow`. With `--make N` it first writes N pictures to the
folder: noise with as much detail at every scale as photographs have, 375 to 640 pixels a side, quality 90.

    python benches/torch_pictures.py FOLDER [--make 64] [--rounds 5]
"""

import argparse
import json
import time
from pathlib import Path

import numpy
import torch
import torchvision
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg, read_file

SIZES = [(375, 500), (500, 375), (333, 500), (480, 640)]


def noise(height, width):
    """Bytes `[height, width, 3]` whose spectrum falls with the frequency, with channels that are much alike."""
    frequency = torch.hypot(torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1.0
    spectrum = torch.randn(4, height, width // 2 + 1, dtype=torch.complex64) / frequency
    planes = torch.fft.irfft2(spectrum, s=(height, width))
    planes = planes / planes.std(dim=(1, 2), keepdim=True)
    image = 120 + 50 * (0.8 * planes[:1] + 0.3 * planes[1:])
    return image.permute(1, 2, 0).clamp(0, 255).byte().numpy()


def make(folder, n_pictures):
    torch.manual_seed(0)
    (folder / "noise").mkdir(parents=True, exist_ok=True)
    for i in range(n_pictures):
        Image.fromarray(noise(*SIZES[i % len(SIZES)])).save(folder / "noise" / f"{i:04}.jpg", quality=90)


def with_torchvision(path):
    return decode_jpeg(read_file(path), mode=ImageReadMode.RGB)


def with_pillow(path):
    """What torchvision's ImageFolder does, as bytes."""
    return torch.from_numpy(numpy.array(Image.open(path).convert("RGB")))


def per_second(decode, paths, n_rounds):
    figures = []
    for _ in range(n_rounds):
        start = time.perf_counter()
        for path in paths:
            decode(path)
        figures.append(len(paths) / (time.perf_counter() - start))
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--make", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    torch.set_num_threads(1)
    if args.make:
        make(args.folder, args.make)
    paths = [str(path) for path in sorted(args.folder.glob("*/*.jpg"))]
    figures = {name: per_second(decode, paths, args.rounds) for name, decode in
               {"decode_jpeg": with_torchvision, "pillow": with_pillow}.items()}
    total = sum(int(with_torchvision(path).sum(dtype=torch.int64)) for path in paths)
    program = f"PyTorch {torch.__version__}, torchvision {torchvision.__version__}"
    print(json.dumps({"program": program, "n_pictures": len(paths), "sum": total, "per_second": figures}))


if __name__ == "__main__":
    main()
