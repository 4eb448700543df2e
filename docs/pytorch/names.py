"""Writes names.txt: the public names of PyTorch and torchvision that `docs/from-pytorch.md` has to say something about.

    python names.py      # needs torch, torchvision and tensorboard

Left out are names that programs do not call: private ones, kernels of backends, what `torch.jit` and the tracer need, and
`x_` where `x` is listed, about which the document has one row.
"""

import inspect
import pathlib
import re
import warnings

warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch.utils.tensorboard  # noqa: E402
import torchvision.transforms.v2  # noqa: E402

INTERNAL = re.compile(
    r"^(cudnn|miopen|mkldnn|fbgemm|quantized|native|sym|unsafe|q|fused|fake_quantize|batch_norm|profiler|import_ir|parse|set_autocast|"
    r"get_autocast|is_autocast|autocast|caching_allocator|has_torch_function)_|(?<!index)_copy$|_with_indices$|"
    r"^(boolean_dispatch|assert_int_or_pair|handle_torch_function|classproperty|fork|wait|init_num_threads|thread_safe_generator|"
    r"merge_type_from_type_comment|unify_type_list|hash_tensor|prepare_multiprocessing_environment|are_deterministic_algorithms_enabled|"
    r"compiled_with_cxx11_abi|get_file_path|typename|choose_qparams_optimized|while_loop|segment_reduce|slice_inverse|"
    r"norm_except_dim|is_vulkan_available|clear_autocast_cache|is_anomaly_check_nan_enabled|get_device_module|"
    r"debug_unwrap|has_torch_function|Self|bind|copy_method_params|Profiler(Config|Event|State)|lru_cache|cast|overload|"
    r"check_error|export_dot|export_graph_data|init|Container|T_destination|dump_patches|"
    r"call_super_init|variable|is_multithreading_enabled|is_view_replay_enabled|kineto_available|is_tensor_like|is_fbcode|"
    r"LinearCrossEntropyOptions|.*Hook|profile_hook_step|ref|partial|module_load|as_subclass|is_storage|"
    r"is_(ipu|maia|meta|mkldnn|mps|mtia|vulkan|xla|xpu)|ipu|mtia|xpu|storage_type|volatile|name|output_nr|const_data_ptr|"
    r"reinforce|grad_dtype|dim_order|multi_head_attention_forward|conv_tbc|.*_runtime_validation.*)$"
)
TYPING = {"Any", "Optional", "Literal", "Union", "NamedTuple", "TypeAlias", "Counter", "Mapping", "Sequence", "SupportsFloat", "Tensor",
          "Module", "deepcopy", "override", "TypeVarTuple", "Unpack", "DeviceType"}


def is_function(value):
    return callable(value) and not inspect.isclass(value) and not inspect.ismodule(value)


def names(module, wanted):
    found = {name for name in dir(module) if not name.startswith("_") and wanted(getattr(module, name, None))}
    return {name for name in found if not INTERNAL.search(name) and name not in TYPING}


def everything(_):
    return True


def listed(module):
    return {name for name in module.__all__ if not name.startswith("_") and not INTERNAL.search(name)}


def without_deprecated(found):
    """Here the name without an underscore is the old one of a function in place."""
    return {name for name in found if f"{name}_" not in found}


optim = torch.optim
sections = {
    "torch and torch.Tensor": (names(torch, is_function) | names(torch.Tensor, everything)) - {"cond"}
    | {"autocast", "enable_grad", "inference_mode", "no_grad", "set_grad_enabled", "device", "dtype", "finfo", "iinfo", "Generator"},
    "torch.linalg": names(torch.linalg, is_function),
    "torch.special": names(torch.special, is_function),
    "torch.fft": names(torch.fft, is_function),
    "torch.nn": names(torch.nn, inspect.isclass) | {"Module"},
    "torch.nn.Module": names(torch.nn.Module, everything),
    "torch.nn.functional": names(torch.nn.functional, is_function),
    "torch.nn.init": without_deprecated(names(torch.nn.init, is_function)),
    "torch.nn.utils": without_deprecated(names(torch.nn.utils, is_function)) | names(torch.nn.utils.rnn, is_function)
    | {"PackedSequence", "parametrize", "prune"},
    "torch.optim": names(optim, inspect.isclass) | names(optim.Optimizer, everything),
    "torch.optim.lr_scheduler": names(optim.lr_scheduler, inspect.isclass) - {"Optimizer"}
    | names(optim.lr_scheduler.LRScheduler, everything),
    "torch.optim.swa_utils": names(optim.swa_utils, is_function) | {"AveragedModel", "SWALR"},
    "torch.utils.data": listed(torch.utils.data),
    "torchvision.transforms.v2": names(torchvision.transforms.v2, inspect.isclass),
    "torch.func": listed(torch.func),
    "torch.autograd": names(torch.autograd, is_function) | names(torch.autograd, inspect.isclass)
    | {f"functional.{name}" for name in names(torch.autograd.functional, is_function)}
    | {f"graph.{name}" for name in ("save_on_cpu", "saved_tensors_hooks", "disable_saved_tensors_hooks", "register_multi_grad_hook",
                                    "allow_mutation_on_saved_tensors")},
    "torch.cuda": names(torch.cuda, is_function) | {"CUDAGraph", "Event", "Stream", "graph"},
    "torch.amp": names(torch.amp, is_function) | names(torch.amp, inspect.isclass),
    "torch.profiler": {"profile", "record_function", "schedule", "tensorboard_trace_handler", "ProfilerActivity"},
    "torch.utils.tensorboard.SummaryWriter": names(torch.utils.tensorboard.SummaryWriter, everything),
}

versions = [package.__version__.split("+")[0] for package in (torch, torchvision)]
lines = [f"# Public names of PyTorch {versions[0]} and torchvision {versions[1]}, by names.py"]
for section, found in sections.items():
    twins = {name for name in found if name.endswith("_") and name[:-1] in found}
    lines += ["", f"[{section}]", *sorted(found - twins)]
pathlib.Path(__file__).with_name("names.txt").write_text("\n".join(lines) + "\n")
