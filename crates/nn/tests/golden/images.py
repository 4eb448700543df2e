"""Writes `images.json` and `images.safetensors`, as `layers.py` does, for layers and functionals that make sequences, images and volumes
larger and smaller, and for layers made of layers.

    python images.py      # needs torch and safetensors; seeds are fixed

`../suite/images.rs` has a line for each case.
"""

import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import parametrizations

import layers
from layers import Attended, classes, numbers, positive, quarters

layers.CASES.clear()
torch.manual_seed(0)  # for the vectors that spectral norms begin with
case = layers.case


def shape(*sizes):
    return lambda: [numbers(*sizes)]


def distinct(*sizes):
    """Numbers that differ, so that the largest is one."""
    count = 1
    for size in sizes:
        count *= size
    return lambda: [(torch.randperm(count, generator=layers.RANDOM).double() / 8 - 1).reshape(sizes)]


def with_places(pair):
    return torch.cat([pair[0].flatten(), pair[1].flatten().double()])


# ---- convolutions -----------------------------------------------------------------------------------------------

case("conv_transpose1d", shape(2, 3, 4), nn.ConvTranspose1d(3, 2, 3))
case("conv_transpose1d all", shape(2, 4, 3),
     nn.ConvTranspose1d(4, 6, 3, stride=3, padding=1, output_padding=2, groups=2, dilation=2, bias=False))
case("conv_transpose1d unbatched", shape(3, 4), nn.ConvTranspose1d(3, 2, 2, stride=2))
case("conv_transpose2d", shape(2, 3, 3, 2), nn.ConvTranspose2d(3, 2, 3))
case("conv_transpose2d all", shape(1, 4, 2, 3),
     nn.ConvTranspose2d(4, 2, (3, 2), stride=(2, 3), padding=(1, 0), output_padding=(1, 2), groups=2, dilation=(1, 2)))
case("conv_transpose2d sized", shape(1, 2, 3, 3), lambda x: F.conv_transpose2d(x, torch.ones(2, 1, 3, 3), stride=2, padding=1, output_padding=1))
case("conv_transpose2d unbatched", shape(2, 3, 3), nn.ConvTranspose2d(2, 1, 4, stride=2, padding=1))
case("conv_transpose3d", shape(1, 2, 2, 3, 2), nn.ConvTranspose3d(2, 2, 2))
case("conv_transpose3d all", shape(1, 4, 2, 2, 3),
     nn.ConvTranspose3d(4, 2, (3, 2, 2), stride=(2, 2, 3), padding=(1, 0, 1), output_padding=(1, 0, 2), groups=2, dilation=(2, 1, 1)))
case("conv_transpose3d unbatched", shape(2, 2, 2, 2), nn.ConvTranspose3d(2, 1, 2, stride=2, bias=False))
case("conv1d same", shape(2, 2, 6), nn.Conv1d(2, 3, 4, padding="same", dilation=1))
case("conv1d circular", shape(2, 2, 6), nn.Conv1d(2, 3, 3, stride=2, padding=2, padding_mode="circular"))
case("conv2d same", shape(1, 2, 4, 5), nn.Conv2d(2, 3, (3, 4), padding="same", dilation=(1, 2)))
case("conv2d same reflect", shape(1, 2, 4, 5), nn.Conv2d(2, 2, (4, 3), padding="same", padding_mode="reflect"))
case("conv2d replicate", shape(1, 2, 4, 3), nn.Conv2d(2, 2, 3, padding=(2, 1), padding_mode="replicate"))
case("conv2d unbatched", shape(2, 4, 3), nn.Conv2d(2, 2, 3, padding=1))
case("conv3d", shape(2, 2, 3, 3, 4), nn.Conv3d(2, 2, 2))
case("conv3d all", shape(1, 4, 5, 4, 3),
     nn.Conv3d(4, 2, (2, 3, 2), stride=(2, 1, 2), padding=(1, 2, 0), dilation=(2, 1, 1), groups=2, bias=False))
case("conv3d same", shape(1, 1, 3, 4, 3), nn.Conv3d(1, 2, (3, 2, 3), padding="same", padding_mode="circular"))
case("conv3d unbatched", shape(1, 3, 3, 3), nn.Conv3d(1, 2, 3, padding=1))

# ---- pools ------------------------------------------------------------------------------------------------------

case("max_pool1d ceil", distinct(2, 2, 8), nn.MaxPool1d(3, stride=2, padding=1, ceil_mode=True))
case("max_pool1d dilated", distinct(2, 2, 9), nn.MaxPool1d(3, stride=2, padding=1, dilation=2))
case("max_pool1d unbatched", distinct(2, 7), nn.MaxPool1d(2))
case("max_pool1d places", distinct(2, 2, 7), lambda x: with_places(F.max_pool1d(x, 3, 2, 1, return_indices=True)))
case("max_pool2d ceil", distinct(1, 2, 5, 6), nn.MaxPool2d((2, 3), stride=(3, 2), padding=(1, 0), ceil_mode=True))
case("max_pool2d dilated", distinct(1, 2, 6, 7), nn.MaxPool2d(3, stride=1, padding=1, dilation=(1, 2), ceil_mode=True))
case("max_pool2d places", distinct(1, 2, 5, 6), lambda x: with_places(F.max_pool2d(x, 3, 2, 1, return_indices=True)))
case("max_pool2d ties", lambda: [quarters(2, 1, 6, 6).round()], lambda x: with_places(F.max_pool2d(x, 3, 2, 1, return_indices=True)))
case("max_pool3d", distinct(1, 2, 4, 4, 4), nn.MaxPool3d(2))
case("max_pool3d all", distinct(1, 2, 5, 4, 5), nn.MaxPool3d(3, stride=2, padding=1, ceil_mode=True))
case("max_pool3d dilated", distinct(2, 5, 4, 5), nn.MaxPool3d(2, stride=(1, 2, 2), dilation=(2, 1, 2)))
case("max_pool3d places", distinct(1, 2, 4, 4, 5), lambda x: with_places(F.max_pool3d(x, 2, 2, 1, return_indices=True)))
case("avg_pool1d ceil", shape(2, 2, 8), nn.AvgPool1d(3, stride=2, padding=1, ceil_mode=True, count_include_pad=False))
case("avg_pool2d ceil", shape(1, 2, 5, 6), nn.AvgPool2d((2, 3), stride=(3, 2), padding=(1, 0), ceil_mode=True))
case("avg_pool2d uncounted", shape(1, 2, 5, 6), nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False))
case("avg_pool2d divisor", shape(2, 5, 6), nn.AvgPool2d(3, stride=2, ceil_mode=True, divisor_override=5))
case("avg_pool3d", shape(1, 2, 4, 4, 5), nn.AvgPool3d(2))
case("avg_pool3d all", shape(1, 2, 5, 4, 5), nn.AvgPool3d(3, stride=(2, 1, 2), padding=1, ceil_mode=True, count_include_pad=False))
case("adaptive_avg_pool3d", shape(1, 2, 5, 4, 3), nn.AdaptiveAvgPool3d((2, 3, 1)))
case("adaptive_max_pool1d", distinct(2, 2, 7), nn.AdaptiveMaxPool1d(3))
case("adaptive_max_pool2d", distinct(1, 2, 5, 7), nn.AdaptiveMaxPool2d((2, 3)))
case("adaptive_max_pool3d", distinct(1, 2, 5, 4, 3), nn.AdaptiveMaxPool3d((2, 3, 1)))
case("adaptive_max_pool2d places", distinct(1, 2, 5, 7), lambda x: with_places(F.adaptive_max_pool2d(x, (2, 3), return_indices=True)))
case("lp_pool1d", shape(2, 2, 7), nn.LPPool1d(2.0, 3, stride=2))
case("lp_pool2d", lambda: [positive(1, 2, 5, 6)], nn.LPPool2d(3.0, (2, 3), ceil_mode=True), second=False)
case("lp_pool3d", shape(1, 1, 4, 4, 4), nn.LPPool3d(2.0, 2))


def pooled(dims, *sizes):
    def inputs():
        pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[dims - 1]
        return list(pool(distinct(*sizes)()[0], 2, return_indices=True))
    return inputs


case("max_unpool1d", pooled(1, 2, 2, 6), nn.MaxUnpool1d(2))
case("max_unpool2d", pooled(2, 1, 2, 4, 6), nn.MaxUnpool2d(2, stride=2))
case("max_unpool3d", pooled(3, 1, 2, 4, 2, 4), nn.MaxUnpool3d(2))

# ---- other sizes ------------------------------------------------------------------------------------------------

for name, sizes, options in [
    ("nearest", (1, 2, 5, 3), {"size": (7, 2), "mode": "nearest"}),
    ("nearest factor", (1, 2, 7), {"scale_factor": 1.3, "mode": "nearest"}),
    ("nearest-exact", (1, 2, 5, 3), {"size": (7, 2), "mode": "nearest-exact"}),
    ("nearest-exact volume", (1, 1, 3, 2, 3), {"scale_factor": (2.0, 1.5, 0.7), "mode": "nearest-exact"}),
    ("linear", (1, 2, 5), {"size": 8, "mode": "linear"}),
    ("linear corners", (1, 2, 5), {"size": 3, "mode": "linear", "align_corners": True}),
    ("bilinear", (1, 2, 3, 4), {"scale_factor": 2.0, "mode": "bilinear"}),
    ("bilinear factor", (1, 2, 5, 4), {"scale_factor": (1.3, 0.7), "mode": "bilinear"}),
    ("bilinear recomputed", (1, 2, 5, 4), {"scale_factor": (1.3, 0.7), "mode": "bilinear", "recompute_scale_factor": True}),
    ("bilinear corners", (1, 2, 3, 4), {"size": (5, 1), "mode": "bilinear", "align_corners": True}),
    ("bilinear long", (1, 1, 150, 2), {"size": (70, 3), "mode": "bilinear"}),
    ("bilinear smooth", (1, 2, 7, 6), {"size": (3, 8), "mode": "bilinear", "antialias": True}),
    ("bicubic", (1, 2, 4, 5), {"size": (7, 3), "mode": "bicubic"}),
    ("bicubic corners", (1, 2, 4, 5), {"size": (7, 3), "mode": "bicubic", "align_corners": True}),
    ("bicubic smooth", (1, 2, 9, 6), {"size": (4, 8), "mode": "bicubic", "antialias": True}),
    ("trilinear", (1, 1, 3, 2, 3), {"scale_factor": (2.0, 1.5, 0.7), "mode": "trilinear"}),
    ("trilinear corners", (1, 1, 3, 2, 3), {"size": (4, 3, 2), "mode": "trilinear", "align_corners": True}),
    ("area", (1, 2, 5, 7), {"size": (2, 3), "mode": "area"}),
    ("area volume", (1, 1, 3, 4, 5), {"scale_factor": 0.5, "mode": "area"}),
]:
    case(f"interpolate {name}", shape(*sizes), lambda x, options=options: F.interpolate(x, **options))
case("upsample bilinear", shape(1, 2, 3, 2), nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=True))
case("upsample trilinear", shape(1, 1, 2, 2, 3), nn.Upsample(size=(3, 2, 4), mode="trilinear"))
case("upsampling nearest", shape(1, 2, 3, 2), nn.UpsamplingNearest2d(scale_factor=2.0))
case("upsampling bilinear", shape(1, 2, 3, 2), nn.UpsamplingBilinear2d(size=5))
case("unfold", shape(2, 2, 4, 5), nn.Unfold((2, 3), dilation=(2, 1), padding=1, stride=(1, 2)))
case("unfold unbatched", shape(2, 3, 3), nn.Unfold(2))
case("fold", shape(2, 12, 20), nn.Fold((4, 5), (2, 3), padding=1, dilation=(2, 1)))
case("fold unbatched", shape(4, 12), nn.Fold((4, 5), 2))
case("channel_shuffle", shape(2, 6, 3), nn.ChannelShuffle(3))

for mode in ("bilinear", "nearest"):
    for padding in ("zeros", "border", "reflection"):
        for corners in (False, True):
            case(f"grid_sample {mode} {padding} {corners}", lambda: [numbers(2, 2, 3, 4), numbers(2, 3, 2, 2)],
                 lambda x, grid, mode=mode, padding=padding, corners=corners:
                 F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=corners))
case("grid_sample volume", lambda: [numbers(1, 2, 3, 2, 3), numbers(1, 2, 1, 3, 3)],
     lambda x, grid: F.grid_sample(x, grid, padding_mode="border", align_corners=False))
case("affine_grid", shape(2, 2, 3), lambda x: F.affine_grid(x, (2, 1, 3, 4), align_corners=False))
case("affine_grid volume", shape(1, 3, 4), lambda x: F.affine_grid(x, (1, 1, 3, 2, 1), align_corners=True))

# ---- tables, products, activations ------------------------------------------------------------------------------

case("embedding max_norm", lambda: [torch.tensor([[1, 2, 1], [6, 0, 2]])], nn.Embedding(7, 3, max_norm=1.25))
case("embedding frequency", lambda: [torch.tensor([[1, 2, 1], [6, 0, 2]])], nn.Embedding(7, 3, padding_idx=0, scale_grad_by_freq=True))
OFFSETS = torch.tensor([0, 2, 2, 5])
for mode in ("sum", "mean", "max"):
    case(f"embedding_bag {mode}", lambda: [classes(7, 3, 4)], nn.EmbeddingBag(7, 3, mode=mode))
    case(f"embedding_bag {mode} offsets", lambda: [torch.tensor([3, 1, 4, 1, 5, 2, 6]), OFFSETS], nn.EmbeddingBag(7, 3, mode=mode, padding_idx=1))
case("embedding_bag weighted", lambda: [classes(7, 2, 3), numbers(2, 3)],
     lambda x, w: F.embedding_bag(x, torch.arange(21.0).reshape(7, 3), mode="sum", per_sample_weights=w), second=False)
case("bilinear", lambda: [numbers(2, 3), numbers(2, 4)], nn.Bilinear(3, 4, 2))
case("softmax2d", shape(1, 3, 2, 2), nn.Softmax2d())
case("rrelu", lambda: [numbers(3, 4)], nn.RReLU(0.25, 0.5).eval())
case("cosine_similarity layer", lambda: [numbers(3, 4), numbers(3, 4)], nn.CosineSimilarity(dim=0))
case("pairwise_distance layer", lambda: [numbers(3, 4), numbers(3, 4)], nn.PairwiseDistance(p=3.0, keepdim=True))

# ---- transformers -----------------------------------------------------------------------------------------------

LATER = torch.ones(3, 3).triu(1).bool()
TWO = lambda: [numbers(3, 2, 4), numbers(2, 2, 4)]  # noqa: E731


def encoder_layer():
    return nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0)


def decoder_layer(**options):
    return nn.TransformerDecoderLayer(4, 2, 6, dropout=0.0, **options)


case("encoder", shape(3, 2, 4), nn.TransformerEncoder(encoder_layer(), 2, norm=nn.LayerNorm(4), enable_nested_tensor=False))
case("decoder_layer", TWO, decoder_layer())
case("decoder_layer masked", TWO, Attended(decoder_layer(norm_first=True), tgt_mask=LATER, memory_key_padding_mask=torch.tensor([[False, True], [False, False]])))
case("decoder", TWO, nn.TransformerDecoder(decoder_layer(), 2))
case("transformer", TWO, nn.Transformer(4, 2, 1, 1, 6, dropout=0.0))

# ---- parametrizations -------------------------------------------------------------------------------------------

case("weight_norm", shape(2, 3), parametrizations.weight_norm(nn.Linear(3, 2)))
case("weight_norm dim", shape(1, 2, 3, 3), parametrizations.weight_norm(nn.Conv2d(2, 3, 2), dim=1))
case("spectral_norm", shape(2, 3), parametrizations.spectral_norm(nn.Linear(3, 4)))
case("spectral_norm evaluated", shape(1, 2, 4), parametrizations.spectral_norm(nn.Conv1d(2, 3, 2)).eval())
case("spectral_norm transposed", shape(1, 2, 4), parametrizations.spectral_norm(nn.ConvTranspose1d(2, 3, 2), n_power_iterations=3))


def main():
    tensors, prints = {}, {}
    for seed, (name, (inputs, run, second)) in enumerate(layers.CASES.items()):
        layers.RANDOM.manual_seed(seed)
        if isinstance(run, nn.Module):
            with torch.no_grad():
                [buffer.copy_(buffer.float()) for buffer in run.buffers()]  # numbers that f32 holds
        tensors |= layers.differentiated(name, inputs(), run, second)
        if isinstance(run, nn.Module):
            prints[name] = str(run.attention) if isinstance(run, Attended) else str(run)
    ones = lambda *sizes: nn.Parameter(torch.ones(*sizes).float())  # noqa: E731
    prints["parameter_dict"] = str(nn.ParameterDict({"left": ones(2), "right": ones(2, 3)}))
    prints["feature_alpha_dropout"] = str(nn.FeatureAlphaDropout(0.25))
    tensors = {name: torch.zeros(value.shape) if value._is_zerotensor() else value.clone().contiguous() for name, value in tensors.items()}
    here = os.path.dirname(os.path.abspath(__file__))
    save_file(tensors, os.path.join(here, "images.safetensors"))
    with open(os.path.join(here, "images.json"), "w") as file:
        json.dump({"cases": list(layers.CASES), "prints": prints}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
