"""Writes `layers.json` and `layers.safetensors`: what PyTorch's layers, functionals and losses make of the inputs here.

    python layers.py      # needs torch and safetensors; seeds are fixed

Each case has its inputs, the module's state, the output, the gradients of floating inputs and of parameters given a gradient of the
output, and where they exist those of the sum of squares of the inputs' gradients (second derivatives). All is computed in f64, from
numbers that f32 holds, so that one file serves both. `../suite/layers.rs` has a line for each case.
"""

import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

torch.set_default_dtype(torch.float64)
HERE = os.path.dirname(os.path.abspath(__file__))
RANDOM = torch.Generator()


def quarters(*shape):
    """Multiples of 1/4 from -4 to 4: among them are the kinks of all activations."""
    return torch.randint(-16, 17, shape, generator=RANDOM).double() / 4


def numbers(*shape):
    return torch.randn(shape, generator=RANDOM).float().double()


def positive(*shape):
    return (torch.rand(shape, generator=RANDOM) * 0.9 + 0.05).float().double()


def signs(*shape):
    return torch.randint(0, 2, shape, generator=RANDOM).double() * 2 - 1


def classes(high, *shape):
    return torch.randint(0, high, shape, generator=RANDOM)


CASES = {}


def case(name, inputs, run, second=True):
    """`run`: a module, or a function of the inputs. `inputs`: makes them. The first is differentiated twice."""
    assert name not in CASES, name
    CASES[name] = (inputs, run, second)


# ---- activations ------------------------------------------------------------------------------------------------

for name, layer in {
    "gelu": nn.GELU(), "gelu tanh": nn.GELU(approximate="tanh"), "silu": nn.SiLU(), "leaky_relu": nn.LeakyReLU(),
    "leaky_relu slope": nn.LeakyReLU(0.25), "elu": nn.ELU(), "elu alpha": nn.ELU(0.5), "celu": nn.CELU(), "celu alpha": nn.CELU(2.0),
    "selu": nn.SELU(), "softplus": nn.Softplus(), "softplus beta": nn.Softplus(3.0, 6.0), "hardtanh": nn.Hardtanh(),
    "hardtanh bounds": nn.Hardtanh(-2.0, 0.5), "relu6": nn.ReLU6(), "hardswish": nn.Hardswish(),
    "logsigmoid": nn.LogSigmoid(), "softsign": nn.Softsign(), "mish": nn.Mish(), "tanhshrink": nn.Tanhshrink(),
    "softshrink": nn.Softshrink(), "softshrink lambda": nn.Softshrink(1.25), "hardshrink": nn.Hardshrink(),
    "hardshrink lambda": nn.Hardshrink(1.25), "threshold": nn.Threshold(0.5, 20.0), "identity": nn.Identity(),
}.items():
    # Second derivatives at kinks are a matter of taste; apart from kinks they are below.
    case(name, lambda: [quarters(6, 10)], layer, second=name.split()[0] not in ("elu", "celu", "selu", "softplus"))
for name, smooth in {"elu": F.elu, "celu": F.celu, "selu": F.selu, "softplus": F.softplus}.items():
    case(f"{name} apart from kinks", lambda: [numbers(3, 5)], smooth)
# PyTorch's gradient of hardsigmoid has the sixth of a f32, also in f64.
case("hardsigmoid", lambda: [quarters(6, 10)], lambda x: F.relu6(x + 3) / 6)
case("activations far out", lambda: [torch.tensor([-1000.0, -100.0, -30.0, 30.0, 100.0, 1000.0])],
     lambda x: torch.stack([F.silu(x), F.elu(x), F.softplus(x), F.logsigmoid(x), F.mish(x), F.selu(x), F.gelu(x)]), second=False)
case("glu", lambda: [numbers(3, 6)], nn.GLU())
case("glu dim", lambda: [numbers(4, 3)], nn.GLU(0))
case("softmax", lambda: [numbers(3, 5)], nn.Softmax(dim=1))
case("log_softmax", lambda: [numbers(3, 5)], nn.LogSoftmax(dim=0))
case("softmin", lambda: [numbers(3, 5)], nn.Softmin(dim=1))
case("prelu", lambda: [quarters(4, 3)], nn.PReLU())
case("prelu channels", lambda: [quarters(2, 3, 4)], nn.PReLU(3))

# ---- embeddings and shapes --------------------------------------------------------------------------------------

case("embedding", lambda: [classes(7, 2, 5)], nn.Embedding(7, 3))
case("embedding padding", lambda: [torch.tensor([[1, 2, 1], [6, 0, 2]])], nn.Embedding(7, 3, padding_idx=2))
case("unflatten", lambda: [numbers(2, 10)], nn.Unflatten(1, (2, 5)))
case("one_hot", lambda: [classes(4, 2, 3)], lambda x: F.one_hot(x, 4).double())

# ---- norms ------------------------------------------------------------------------------------------------------

case("group_norm", lambda: [numbers(2, 6, 3, 2)], nn.GroupNorm(3, 6))
case("group_norm plain", lambda: [numbers(2, 4)], nn.GroupNorm(2, 4, eps=1e-3, affine=False))
case("instance_norm 1d", lambda: [numbers(2, 3, 4)], nn.InstanceNorm1d(3))
case("instance_norm 2d", lambda: [numbers(2, 3, 2, 3)], nn.InstanceNorm2d(3, affine=True))
case("instance_norm 3d", lambda: [numbers(2, 2, 2, 2, 2)], nn.InstanceNorm3d(2, eps=1e-3))
case("instance_norm unbatched", lambda: [numbers(3, 4)], nn.InstanceNorm1d(3, affine=True))
case("instance_norm tracked", lambda: [numbers(2, 3, 4)], nn.InstanceNorm1d(3, affine=True, track_running_stats=True))
case("instance_norm evaluated", lambda: [numbers(2, 3, 4)], nn.InstanceNorm1d(3, affine=True, track_running_stats=True).eval())
case("rms_norm", lambda: [numbers(3, 5)], nn.RMSNorm(5))
case("rms_norm two", lambda: [numbers(2, 3, 4)], nn.RMSNorm((3, 4), eps=1e-3, elementwise_affine=False))
case("batch_norm 3d", lambda: [numbers(2, 3, 2, 2, 2)], nn.BatchNorm3d(3), second=False)
case("local_response_norm", lambda: [numbers(2, 5, 3)], nn.LocalResponseNorm(3, alpha=0.5))
case("local_response_norm even", lambda: [numbers(2, 5, 2, 2)], nn.LocalResponseNorm(2, alpha=0.1, beta=0.5, k=2.0))
case("normalize", lambda: [numbers(3, 4)], lambda x: F.normalize(x))
case("normalize p", lambda: [numbers(3, 4)], lambda x: F.normalize(x, p=3.0, dim=0))
case("normalize zeros", lambda: [torch.zeros(2, 3)], lambda x: F.normalize(x), second=False)
case("cosine_similarity", lambda: [numbers(3, 4), numbers(3, 4)], lambda x, y: F.cosine_similarity(x, y))
for p in (1.0, 2.0, 3.0, float("inf")):
    case(f"pairwise_distance {p}", lambda: [numbers(3, 4), numbers(3, 4)], lambda x, y, p=p: F.pairwise_distance(x, y, p=p))

# ---- losses -----------------------------------------------------------------------------------------------------

SCORES = lambda: [numbers(6, 4), torch.tensor([3, 1, -100, 0, 2, -100])]  # noqa: E731
LABELS = lambda: [numbers(6, 4), torch.tensor([3, 1, 2, 0, 2, 1])]  # noqa: E731
PIXELS = lambda: [numbers(2, 3, 4), classes(3, 2, 4)]  # noqa: E731
SHARES = lambda: [numbers(5, 4), torch.softmax(numbers(5, 4), 1).float().double()]  # noqa: E731
WEIGHT = torch.tensor([0.5, 2.0, 1.0, 0.25])

case("cross_entropy", LABELS, nn.CrossEntropyLoss())
case("cross_entropy weight", LABELS, nn.CrossEntropyLoss(weight=WEIGHT))
case("cross_entropy ignored", SCORES, nn.CrossEntropyLoss())
case("cross_entropy all", SCORES, nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.25))
case("cross_entropy smoothing", SCORES, nn.CrossEntropyLoss(label_smoothing=0.25))
case("cross_entropy smoothing sum", LABELS, nn.CrossEntropyLoss(label_smoothing=0.25, reduction="sum"))
case("cross_entropy none", SCORES, nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.5, reduction="none"))
case("cross_entropy pixels", PIXELS, nn.CrossEntropyLoss(weight=WEIGHT[:3], ignore_index=1, label_smoothing=0.25))
case("cross_entropy soft", SHARES, nn.CrossEntropyLoss())
case("cross_entropy soft all", SHARES, nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.25))
case("cross_entropy soft none", SHARES, nn.CrossEntropyLoss(reduction="none"))
case("nll weight", LABELS, nn.NLLLoss(weight=WEIGHT))
case("nll ignored", PIXELS, nn.NLLLoss(ignore_index=2, reduction="sum"))
for reduction in ("mean", "sum", "none"):
    case(f"l1 {reduction}", lambda: [quarters(3, 5), quarters(3, 5)], nn.L1Loss(reduction=reduction))
case("smooth_l1", lambda: [quarters(3, 5), quarters(3, 5)], nn.SmoothL1Loss())
case("smooth_l1 beta", lambda: [quarters(3, 5), quarters(3, 5)], nn.SmoothL1Loss(beta=0.5))
case("smooth_l1 zero", lambda: [quarters(3, 5), quarters(3, 5)], nn.SmoothL1Loss(beta=0.0))
case("huber", lambda: [quarters(3, 5), quarters(3, 5)], nn.HuberLoss())
case("huber delta", lambda: [quarters(3, 5), quarters(3, 5)], nn.HuberLoss(delta=2.5, reduction="sum"))
case("bce", lambda: [positive(3, 4), positive(3, 4)], nn.BCELoss(), second=False)
case("bce ends", lambda: [torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.tensor([0.0, 1.0, 0.0, 1.0])], nn.BCELoss(), second=False)
case("bce weight", lambda: [positive(3, 4), positive(3, 4)], nn.BCELoss(weight=WEIGHT, reduction="none"), second=False)
case("bce logits", lambda: [quarters(3, 4), positive(3, 4)], nn.BCEWithLogitsLoss())
case("bce logits all", lambda: [quarters(3, 4), positive(3, 4)],
     nn.BCEWithLogitsLoss(weight=WEIGHT, pos_weight=torch.tensor([3.0, 0.5, 1.0, 2.0]), reduction="sum"))
case("kl_div", lambda: [numbers(3, 4), positive(3, 4)], nn.KLDivLoss())
case("kl_div zeros", lambda: [numbers(1, 3), torch.tensor([[0.0, 1.0, 0.0]])], nn.KLDivLoss(reduction="sum"))
case("kl_div batchmean", lambda: [numbers(3, 4), positive(3, 4)], nn.KLDivLoss(reduction="batchmean"))
case("kl_div logs", lambda: [numbers(3, 4), numbers(3, 4)], nn.KLDivLoss(log_target=True, reduction="none"))
case("poisson", lambda: [numbers(3, 4), classes(5, 3, 4).double()], nn.PoissonNLLLoss())
case("poisson full", lambda: [positive(3, 4), classes(5, 3, 4).double()], nn.PoissonNLLLoss(log_input=False, full=True, eps=1e-3))
case("gaussian", lambda: [numbers(3, 4), numbers(3, 4), positive(3, 4)], nn.GaussianNLLLoss())
case("gaussian full", lambda: [numbers(3, 4), numbers(3, 4), positive(3, 1)], nn.GaussianNLLLoss(full=True, eps=0.5, reduction="sum"))
case("soft_margin", lambda: [quarters(3, 4), signs(3, 4)], nn.SoftMarginLoss())
case("margin_ranking", lambda: [quarters(12), quarters(12), signs(12)], nn.MarginRankingLoss())
case("margin_ranking margin", lambda: [quarters(12), quarters(12), signs(12)], nn.MarginRankingLoss(margin=0.5))
case("hinge_embedding", lambda: [quarters(12), signs(12)], nn.HingeEmbeddingLoss())
case("hinge_embedding margin", lambda: [quarters(12), signs(12)], nn.HingeEmbeddingLoss(margin=2.5, reduction="sum"))
case("cosine_embedding", lambda: [numbers(6, 4), numbers(6, 4), signs(6)], nn.CosineEmbeddingLoss())
case("cosine_embedding margin", lambda: [numbers(6, 4), numbers(6, 4), signs(6)], nn.CosineEmbeddingLoss(margin=0.25, reduction="none"))
case("triplet_margin", lambda: [numbers(5, 4) for _ in range(3)], nn.TripletMarginLoss())
case("triplet_margin swap", lambda: [numbers(5, 4) for _ in range(3)], nn.TripletMarginLoss(margin=0.5, p=3.0, swap=True))
case("multi_margin", LABELS, nn.MultiMarginLoss(), second=False)
case("multi_margin p", LABELS, nn.MultiMarginLoss(p=2, margin=0.5, weight=WEIGHT), second=False)
case("multilabel_margin", lambda: [numbers(2, 4), torch.tensor([[3, 0, -1, 1], [1, -1, 2, 0]])], nn.MultiLabelMarginLoss(), second=False)
case("multilabel_soft_margin", lambda: [quarters(3, 4), classes(2, 3, 4).double()], nn.MultiLabelSoftMarginLoss())
case("multilabel_soft_margin weight", lambda: [quarters(3, 4), classes(2, 3, 4).double()],
     nn.MultiLabelSoftMarginLoss(weight=WEIGHT, reduction="none"))
SPOKEN = lambda: [numbers(7, 3, 4), torch.tensor([[1, 2, 2], [3, 1, 0], [2, 0, 0]])]  # noqa: E731
LENGTHS = ((7, 5, 6), (3, 2, 0))
case("ctc", SPOKEN, lambda x, y: nn.CTCLoss()(x.log_softmax(2), y, *LENGTHS), second=False)
case("ctc none", SPOKEN, lambda x, y: nn.CTCLoss(reduction="none")(x.log_softmax(2), y, *LENGTHS), second=False)
case("ctc impossible", SPOKEN, lambda x, y: nn.CTCLoss(reduction="none", zero_infinity=True)(x.log_softmax(2), y, (2, 5, 6), (3, 2, 1)),
     second=False)

# ---- attention --------------------------------------------------------------------------------------------------

HEADS = lambda: [numbers(2, 2, 3, 4), numbers(2, 2, 5, 4), numbers(2, 2, 5, 3)]  # noqa: E731
ALLOWED = torch.tensor([[True, False, True, True, False], [False] * 5, [True] * 5])
ADDED = torch.tensor([[0.5, -1.0, 0.0, 2.0, float("-inf")], [0.0] * 5, [-0.25] * 5])
case("attention", HEADS, lambda q, k, v: F.scaled_dot_product_attention(q, k, v))
case("attention causal", HEADS, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.25))
case("attention allowed", HEADS, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=ALLOWED), second=False)
case("attention added", HEADS, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=ADDED))
PADDED = torch.tensor([[False, False, True], [False, False, False]])


class Attended(nn.Module):
    """A module that gives the output and the weights of attention as one vector."""

    def __init__(self, attention, **options):
        super().__init__()
        self.attention, self.options = attention, options

    def forward(self, *inputs):
        inputs = inputs * 3 if len(inputs) == 1 else inputs
        return torch.cat([part.flatten() for part in self.attention(*inputs, **self.options)])


case("multihead", lambda: [numbers(3, 2, 4)], Attended(nn.MultiheadAttention(4, 2)))
case("multihead cross", lambda: [numbers(2, 3, 4), numbers(2, 3, 4), numbers(2, 3, 4)],
     Attended(nn.MultiheadAttention(4, 2, batch_first=True), key_padding_mask=PADDED))
case("multihead plain", lambda: [numbers(3, 2, 4)],
     Attended(nn.MultiheadAttention(4, 2, bias=False), attn_mask=torch.ones(3, 3).triu(1).bool()))
case("multihead unbatched", lambda: [numbers(3, 4)], Attended(nn.MultiheadAttention(4, 1)))
case("encoder_layer", lambda: [numbers(2, 3, 4)], nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True))
case("encoder_layer norm_first", lambda: [numbers(3, 2, 4)], nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, norm_first=True))

# ---- sequences, padding, other sizes ----------------------------------------------------------------------------

case("conv1d", lambda: [numbers(2, 3, 7)], nn.Conv1d(3, 4, 3))
case("conv1d all", lambda: [numbers(2, 4, 9)], nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2, bias=False))
case("conv1d unbatched", lambda: [numbers(3, 7)], nn.Conv1d(3, 2, 2))
case("max_pool1d", lambda: [numbers(2, 3, 7)], nn.MaxPool1d(3, stride=2, padding=1))
case("avg_pool1d", lambda: [numbers(2, 3, 7)], nn.AvgPool1d(3, stride=2, padding=1))
case("adaptive_avg_pool1d", lambda: [numbers(2, 3, 7)], nn.AdaptiveAvgPool1d(3))
for dims in (1, 2, 3):
    pads = [(1, 2), (2, 0), (0, 1)][:dims]
    flat = [end for pair in pads for end in pair]
    x = lambda dims=dims: [numbers(2, 2, *(3, 4, 3)[:dims])]  # noqa: E731
    case(f"zero_pad {dims}d", x, getattr(nn, f"ZeroPad{dims}d")(tuple(flat)))
    case(f"constant_pad {dims}d", x, getattr(nn, f"ConstantPad{dims}d")(tuple(flat), 3.5))
    case(f"reflection_pad {dims}d", x, getattr(nn, f"ReflectionPad{dims}d")(tuple(flat)))
    case(f"replication_pad {dims}d", x, getattr(nn, f"ReplicationPad{dims}d")(tuple(flat)))
    case(f"circular_pad {dims}d", x, getattr(nn, f"CircularPad{dims}d")(tuple(flat)))
case("replication_pad unbatched", lambda: [numbers(2, 3)], nn.ReplicationPad1d(2))
case("upsample", lambda: [numbers(1, 2, 3, 4)], nn.Upsample(scale_factor=2.0))
case("upsample fraction", lambda: [numbers(1, 2, 7)], nn.Upsample(scale_factor=1.5))
case("upsample size", lambda: [numbers(1, 2, 5, 3)], nn.Upsample(size=4))
case("pixel_shuffle", lambda: [numbers(1, 8, 2, 3)], nn.PixelShuffle(2))
case("pixel_unshuffle", lambda: [numbers(1, 2, 4, 6)], nn.PixelUnshuffle(2))


# ---- appended later, so that the seeds of the cases above stay --------------------------------------------------

for p in (1.0, 2.0, 3.0, float("inf")):
    case(f"pdist {p}", lambda: [numbers(4, 3)], lambda x, p=p: F.pdist(x, p), second=False)
case("pdist equal rows", lambda: [numbers(2, 3)[[0, 1, 0]]], lambda x: F.pdist(x, 3.0), second=False)
case("triplet_distance", lambda: [numbers(5, 4) for _ in range(3)], nn.TripletMarginWithDistanceLoss())
case("triplet_distance other", lambda: [numbers(5, 4) for _ in range(3)], nn.TripletMarginWithDistanceLoss(
    distance_function=lambda x, y: 1.0 - F.cosine_similarity(x, y), margin=0.5, swap=True, reduction="sum"))
ADAPTIVE = lambda *at: lambda: [numbers(6, 8), torch.tensor(at)]  # noqa: E731
case("adaptive_softmax", ADAPTIVE(1, 11, 3, 0, 6, 7), Attended(nn.AdaptiveLogSoftmaxWithLoss(8, 12, [3, 7], div_value=2.0)))
case("adaptive_softmax frequent", ADAPTIVE(1, 2, 2, 0, 0, 1), Attended(nn.AdaptiveLogSoftmaxWithLoss(8, 12, [3, 7], div_value=2.0)))
case("adaptive_softmax all", ADAPTIVE(11, 2, 4, 5, 8, 9),
     Attended(nn.AdaptiveLogSoftmaxWithLoss(8, 12, [2, 5, 9], div_value=1.5, head_bias=True)))
case("adaptive_softmax one", lambda: [numbers(8), torch.tensor(4)], Attended(nn.AdaptiveLogSoftmaxWithLoss(8, 12, [3, 7], div_value=2.0)))


class LogProb(Attended):
    def forward(self, x):
        return self.attention.log_prob(x)


case("adaptive_softmax log_prob", lambda: [numbers(6, 8)],
     LogProb(nn.AdaptiveLogSoftmaxWithLoss(8, 12, [2, 5, 9], div_value=1.5, head_bias=True)))
WIDTHS = lambda *widths: lambda: [numbers(2, 3, width) for width in widths]  # noqa: E731
case("multihead kdim vdim", WIDTHS(4, 3, 5), Attended(nn.MultiheadAttention(4, 2, kdim=3, vdim=5)))
case("multihead kdim plain", WIDTHS(4, 3, 4), Attended(nn.MultiheadAttention(4, 2, kdim=3, bias=False, batch_first=True)))
case("multihead bias_kv", WIDTHS(4, 4, 4),
     Attended(nn.MultiheadAttention(4, 2, add_bias_kv=True, batch_first=True), key_padding_mask=PADDED))
case("multihead zero_attn", lambda: [numbers(3, 2, 4)], Attended(nn.MultiheadAttention(4, 2, add_zero_attn=True)))
case("multihead all", WIDTHS(4, 3, 5),
     Attended(nn.MultiheadAttention(4, 2, kdim=3, vdim=5, add_bias_kv=True, add_zero_attn=True, batch_first=True),
              key_padding_mask=PADDED, attn_mask=torch.ones(3, 3).triu(1).bool()))
FRACTIONS = lambda *shape: lambda: [numbers(*shape), positive(shape[0] if len(shape) == 4 else 1, shape[-3], 2)]  # noqa: E731
case("fractional_max_pool2d", FRACTIONS(2, 3, 9, 11), lambda x, at: F.fractional_max_pool2d(x, 2, (5, 8), _random_samples=at.detach()))
case("fractional_max_pool2d wide", FRACTIONS(2, 7, 10), lambda x, at: F.fractional_max_pool2d(x, (3, 4), (1, 7), _random_samples=at.detach()))
case("fractional_max_pool2d indices", FRACTIONS(2, 3, 9, 11),
     lambda x, at: F.fractional_max_pool2d(x, 2, (6, 4), return_indices=True, _random_samples=at.detach())[1].double())


# How many inputs of a loss have gradients; of others one, and of what is no loss all.
OF_LOSSES = {nn.L1Loss: 2, nn.SmoothL1Loss: 2, nn.HuberLoss: 2, nn.GaussianNLLLoss: 3, nn.MarginRankingLoss: 2,
             nn.CosineEmbeddingLoss: 2, nn.TripletMarginLoss: 3,
             nn.TripletMarginWithDistanceLoss: 3}


def differentiated(name, inputs, run, second):
    """The tensors of a case."""
    tensors = {}
    for i, x in enumerate(inputs):
        tensors[f"{name}/input.{i}"] = x.detach().float() if x.is_floating_point() else x
    parameters = {}
    if isinstance(run, nn.Module):
        for key, value in run.named_parameters():
            with torch.no_grad():
                value.copy_(numbers(*value.shape) if value.dim() else numbers())
            parameters[key.removeprefix("attention.")] = value
        tensors |= {f"{name}/state.{key.removeprefix('attention.')}": value.detach().clone().float() if value.is_floating_point() else value.clone()
                    for key, value in run.state_dict().items()}
    count = OF_LOSSES.get(type(run), 1) if type(run).__name__.endswith("Loss") else len(inputs)
    leaves = {f"input.{i}": x for i, x in enumerate(inputs[:count]) if x.is_floating_point()}
    for x in leaves.values():
        x.requires_grad_()
    y = run(*inputs)
    tensors[f"{name}/output"] = y.detach().clone()
    if y.requires_grad:
        upstream = numbers(*y.shape)
        tensors[f"{name}/upstream"] = upstream.float()
        of = leaves | {f"state.{key}": value for key, value in parameters.items()}
        grads = torch.autograd.grad(y, of.values(), upstream, create_graph=True, allow_unused=True)
        for key, grad in zip(of, grads):
            if grad is not None:
                tensors[f"{name}/grad.{key}"] = grad.detach().clone()
        if second and leaves and grads[0] is not None and grads[0].requires_grad:
            try:
                again = torch.autograd.grad(grads[0].pow(2).sum(), inputs[0], allow_unused=True)[0]
                if again is not None:
                    tensors[f"{name}/second"] = again
            except RuntimeError as error:
                assert "not implemented" in str(error), error  # PyTorch has no second derivatives of some
    if isinstance(run, nn.Module):
        tensors |= {f"{name}/after.{key}": value.detach().clone() for key, value in run.named_buffers()
                    if value.is_floating_point() and key.startswith("running")}
    return tensors


def main():
    tensors, prints = {}, {}
    for seed, (name, (inputs, run, second)) in enumerate(CASES.items()):
        RANDOM.manual_seed(seed)
        tensors |= differentiated(name, inputs(), run, second)
        if isinstance(run, nn.Module):
            prints[name] = str(run.attention) if isinstance(run, Attended) else str(run)
    for name, module in {
        "hardsigmoid": nn.Hardsigmoid(),
        "module_list": nn.ModuleList([nn.Linear(2, 3), nn.Linear(2, 3), nn.ReLU()]),
        "module_dict": nn.ModuleDict({"color": nn.Linear(2, 3), "size": nn.Sequential(nn.GELU(), nn.Identity())}),
        "parameter_list": nn.ParameterList([nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, 3))]),
        "parameter_list of one": nn.ParameterList([nn.Parameter(torch.ones(2))]),
        "dropouts": nn.Sequential(nn.Dropout1d(), nn.Dropout2d(0.25), nn.Dropout3d(0.75), nn.AlphaDropout(0.1)),
        "conv1d settings": nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2, bias=False),
    }.items():
        prints[name] = str(module.float())
    tensors = {name: torch.zeros(value.shape) if value._is_zerotensor() else value.clone().contiguous() for name, value in tensors.items()}
    save_file(tensors, os.path.join(HERE, "layers.safetensors"))
    with open(os.path.join(HERE, "layers.json"), "w") as file:
        json.dump({"cases": list(CASES), "prints": prints}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
