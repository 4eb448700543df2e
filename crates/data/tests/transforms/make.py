#!/usr/bin/env python3
"""What torchvision makes of a small picture, for the tests in `src/transforms/tests.rs`.

Makes `golden.safetensors` anew, beside this file: `python make.py`. Needs torch, torchvision and safetensors. The cases have the names
that the tests look for, each once with `bytes/` and once with `floats/` before it; `gray/` are those of one channel.
"""

import os

import torch
import torchvision
from safetensors.torch import save_file
from torchvision.transforms import v2
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
NEAREST, BILINEAR, BICUBIC = InterpolationMode.NEAREST, InterpolationMode.BILINEAR, InterpolationMode.BICUBIC
START = [[0, 0], [10, 0], [10, 8], [0, 8]]
END = [[1.3, 2.1], [9.2, 0.4], [9.9, 7.1], [2.2, 7.7]]  # no pixel is halfway between two, where rounding decides


def affine(x, interpolation, fill=0.0, **changes):
    by = dict(angle=0.0, translate=[0, 0], scale=1.0, shear=[0.0, 0.0]) | changes
    return F.affine(x, **by, interpolation=interpolation, fill=fill)


def cases(x):
    bright = 255 if x.dtype == torch.uint8 else 1.0
    for name, size in [("down", [4, 5]), ("up", [20, 17]), ("mixed", [5, 23])]:
        yield f"resize_nearest_{name}", F.resize(x, size, NEAREST)
        for kind, mode in [("bilinear", BILINEAR), ("bicubic", BICUBIC)]:
            for antialias in [True, False]:
                yield f"resize_{kind}_{name}_{str(antialias).lower()}", F.resize(x, size, mode, antialias=antialias)
    yield "resize_shorter", F.resize(x, [6], BILINEAR)
    yield "resized_crop", F.resized_crop(x, 1, 2, 7, 6, [5, 8], BILINEAR)
    yield "crop", F.crop(x, 2, 3, 4, 5)
    yield "center_crop", F.center_crop(x, [4, 6])
    yield "center_crop_larger", F.center_crop(x, [12, 6])
    for mode in ["constant", "edge", "reflect", "symmetric"]:
        yield f"pad_{mode}", F.pad(x, [2, 3, 4, 1], padding_mode=mode)
    yield "horizontal_flip", F.horizontal_flip(x)
    yield "vertical_flip", F.vertical_flip(x)
    for kind, mode in [("nearest", NEAREST), ("bilinear", BILINEAR)]:
        yield f"affine_{kind}", affine(x, mode, angle=17.3, translate=[1.3, -2.1], scale=0.83, shear=[5.0, -7.0])
        yield f"affine_center_{kind}", affine(x, mode, shear=[13.7, 0.0], center=[0, 0], fill=bright)
        yield f"rotate_{kind}", F.rotate(x, 33.7, mode)
        yield f"rotate_expand_{kind}", F.rotate(x, 33.7, mode, expand=True)
        yield f"perspective_{kind}", F.perspective(x, START, END, mode)
    for factor in [0.3, 1.7]:
        yield f"adjust_brightness_{factor}", F.adjust_brightness(x, factor)
        yield f"adjust_contrast_{factor}", F.adjust_contrast(x, factor)
        yield f"adjust_saturation_{factor}", F.adjust_saturation(x, factor)
        yield f"adjust_sharpness_{factor}", F.adjust_sharpness(x, factor)
    for factor in [-0.3, 0.1, 0.5]:
        yield f"adjust_hue_{factor}", F.adjust_hue(x, factor)
    yield "rgb_to_grayscale", F.rgb_to_grayscale(x, 1)
    yield "invert", F.invert(x)
    yield "posterize", F.posterize(x, 3)
    yield "solarize", F.solarize(x, 0.6 * bright)
    yield "autocontrast", F.autocontrast(x)
    yield "equalize", F.equalize(x)
    yield "gaussian_blur", F.gaussian_blur(x, [5, 3], [1.1, 1.1])
    yield "erase", F.erase(x, 2, 3, 4, 5, torch.tensor(0.25 * bright).to(x.dtype))
    for of, at in [(v2.AutoAugment, 7), (v2.TrivialAugmentWide, 4), (v2.AugMix, 2)]:
        augment = of(interpolation=BILINEAR)
        n_bins = 31 if of is v2.TrivialAugmentWide else 10
        for change, (magnitudes, signed) in augment._AUGMENTATION_SPACE.items():
            magnitude = magnitudes(n_bins, *x.shape[1:])
            magnitude = 0.0 if magnitude is None else float(magnitude[at]) * (-1 if signed else 1)
            made = augment._apply_image_or_video_transform(x, change, magnitude, BILINEAR, augment._fill)
            yield f"{of.__name__}_{change}", made


def policies():
    """A line for each pair of changes: probabilities in tenths, strengths in ninths."""
    for policy in v2.AutoAugmentPolicy:
        for pair in v2.AutoAugment(policy)._policies:
            of_each = [f"{change} {round(10 * p)} {strength or 0}" for change, p, strength in pair]
            yield " ".join([policy.name, *of_each]) + "\n"


def main():
    generator = torch.Generator().manual_seed(7)
    image = torch.randint(0, 256, (3, 9, 11), dtype=torch.uint8, generator=generator)
    image[:, 0, :4] = image[:1, 0, :4]  # gray pixels
    floats = image.float() / 255
    large = torch.randint(40, 200, (3, 30, 40), dtype=torch.uint8, generator=generator)  # large enough to be equalized
    tensors = {"bytes": image, "floats": floats, "large": large, "large/equalize": F.equalize(large)}
    for kind, x in [("bytes", image), ("floats", floats)]:
        tensors |= {f"{kind}/{name}": made.clone().contiguous() for name, made in cases(x)}
    with open(os.path.join(HERE, "policies.txt"), "w") as file:
        file.writelines(policies())
    metadata = {"torch": torch.__version__, "torchvision": torchvision.__version__}
    save_file(tensors, os.path.join(HERE, "golden.safetensors"), metadata)


if __name__ == "__main__":
    main()
