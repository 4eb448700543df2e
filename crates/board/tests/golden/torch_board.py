#!/usr/bin/env python3
"""PyTorch's SummaryWriter beside ours.

    torch_board.py make             writes the files in `torch/` here, which the tests of the crate compare with (needs torchvision)
    torch_board.py compare OURS     makes the same calls with PyTorch, and compares its files with those in the folder OURS, which
                                    `calls.rs` wrote: through TensorBoard's EventAccumulator and through its HTTP server
    torch_board.py resumed OURS     checks that TensorBoard shows steps 0 to 7 of a run that did steps 4 and 5 again, as `tensorboard.rs`
                                    wrote it
    torch_board.py time N           nanoseconds that each of N calls of add_scalar takes

Needs torch. Where TensorBoard is missing, it is installed from PyPI into a temporary virtual environment.
`calls` here and in `calls.rs` are the same calls in the same order.
"""

import io
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
TIME = 1_700_000_000


def with_tensorboard():
    """Runs this script again in a virtual environment with TensorBoard, if this one has none."""
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        import torch

        folder = tempfile.mkdtemp(prefix="pagelock-board-")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = Path(folder, "bin", "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", "tensorboard", "pillow"], check=True)
        site = subprocess.run([python, "-c", "import site; print(site.getsitepackages()[0])"], check=True, capture_output=True)
        Path(site.stdout.decode().strip(), "torch.pth").write_text(str(Path(torch.__file__).parent.parent) + "\n")
        done = subprocess.run([python, *sys.argv])
        shutil.rmtree(folder)
        sys.exit(done.returncode)


def value(i):
    return ((i * 2654435761) % 2**32) / 2**32


def values(begin, n):
    import numpy as np

    return np.array([value(i) for i in range(begin, begin + n)]).astype(np.float32)


def calls(writer):
    import numpy as np
    import torch
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.graph_pb2 import GraphDef
    from tensorboard.compat.proto.versions_pb2 import VersionDef
    from torch.utils.tensorboard._proto_graph import node_proto

    for step in range(10):
        writer.add_scalar("loss/train", value(step), step, walltime=TIME + step)
    special = [math.nan, math.inf, -math.inf, 1e-40, 3.4e38, -0.0, 1e300]
    for step, number in enumerate(special):
        writer.add_scalar("special", number, step, walltime=TIME)
    writer.add_scalar("large step", 1.0, 2**62, walltime=TIME)
    for step in range(3):
        writer.add_scalars("both/of", {"a": value(step), "b": -value(step)}, step, walltime=TIME)

    for step in range(3):
        writer.add_histogram("weights", values(1000 * step, 1000) - np.float32(0.5), step, walltime=TIME)
    writer.add_histogram("zero", np.array([0.0]), 0, walltime=TIME)
    writer.add_histogram("wide", np.array([-1e25, 1e-13, 5.0, 5.0, math.inf]), 0, walltime=TIME)
    writer.add_histogram("integers", np.array([-3, 0, 0, 7]), 0, walltime=TIME)
    writer.add_histogram("equal", values(7, 100), 0, bins=30, walltime=TIME)
    writer.add_histogram("same", np.array([2.0, 2.0]), 0, bins=4, walltime=TIME)
    writer.add_histogram("edges", values(7, 100), 0, bins=np.array([0.1, 0.5, 0.6]), walltime=TIME)

    bytes_ = lambda begin, n: (values(begin, n) * np.float32(256)).astype(np.uint8)  # noqa: E731
    beyond = lambda begin, n: values(begin, n) * np.float32(1.5) - np.float32(0.25)  # noqa: E731
    image = lambda tag, array, form: writer.add_image(tag, array, 1, walltime=TIME, dataformats=form)  # noqa: E731
    image("color", beyond(0, 105).reshape(3, 5, 7), "CHW")
    image("gray", bytes_(0, 24).reshape(1, 4, 6), "CHW")
    image("rgba", bytes_(0, 60).reshape(3, 5, 4), "HWC")
    image("hw", values(0, 15).reshape(3, 5), "HW")
    image("wh", values(0, 15).reshape(3, 5), "WH")
    image("tall", values(0, 45).reshape(5, 3, 3), "WHC")
    writer.add_images("many", values(0, 600).reshape(10, 3, 4, 5), 1, walltime=TIME)
    writer.add_images("gray many", bytes_(0, 60).reshape(3, 4, 5, 1), 1, walltime=TIME, dataformats="NHWC")
    try:
        from torchvision.utils import make_grid
    except ImportError:
        print("torchvision is missing: its grids are not compared", file=sys.stderr)
    else:
        pictures = torch.from_numpy(values(3, 600).reshape(10, 3, 4, 5))
        grays = torch.from_numpy(bytes_(3, 60).reshape(3, 1, 4, 5))
        image("grid/plain", make_grid(pictures), "CHW")
        image("grid/gray", make_grid(grays, nrow=2, padding=1, pad_value=9), "CHW")
        image("grid/normal", make_grid(pictures * 3 - 1, nrow=4, normalize=True, pad_value=0.5), "CHW")
        image("grid/each", make_grid(pictures * 3 - 1, normalize=True, scale_each=True), "CHW")
        image("grid/range", make_grid(pictures, padding=0, normalize=True, value_range=(0.25, 0.5)), "CHW")
        image("grid/single", make_grid(pictures[:1]), "CHW")
        image("grid/flat", make_grid(pictures[0, 0]), "CHW")

    writer.add_text("notes", "**bold** – \"text\"\n\n| a | b |", 4, walltime=TIME)
    labels = (values(50, 200) > 0.6).astype(np.int64)
    writer.add_pr_curve("curve", labels, values(400, 200), 2, walltime=TIME)
    writer.add_pr_curve("short curve", labels, values(400, 200), 2, num_thresholds=10, walltime=TIME)
    writer.add_pr_curve("sure", np.array([1, 0]), np.array([1.0, 0.0], np.float32), 2, walltime=TIME)

    points = torch.from_numpy(values(0, 50).reshape(10, 5))
    pictures = torch.from_numpy(values(0, 480).reshape(10, 3, 4, 4))
    writer.add_embedding(points, [f"label {i}" for i in range(10)], pictures, 3, "a/b%")
    writer.add_embedding(points, [[i, f"é{i}"] for i in range(10)], None, 3, "columns", ["number", "name"])
    writer.add_embedding(points, None, None, None)

    nodes = [
        node_proto("input/x", "IO Node", [], outputsize=[4, 784]),
        node_proto("net/fc/weight", "Parameter", [], outputsize=[10, 784], attributes="{ grad : True}"),
        node_proto("net/fc/linear", "aten::linear", ["input/x", "net/fc/weight"], outputsize=[4, 10]),
        node_proto("net/scalar", "prim::Constant", []),
        node_proto("output/y", "IO Node", ["net/fc/linear"], outputsize=[4, 10]),
    ]
    graph = GraphDef(node=nodes, versions=VersionDef(producer=22))
    writer.file_writer.add_event(Event(graph_def=graph.SerializeToString()), None, TIME)

    settings = {"lr": 0.125, "layers": 3, "optimizer": "sgd"}
    writer.add_hparams(settings, {"hparam/accuracy": 0.75, "hparam/loss": 0.5}, {"optimizer": ["sgd", "adam"]}, "run a", 5)
    writer.add_hparams(settings | {"lr": 0.25}, {"hparam/accuracy": 0.5, "hparam/loss": math.nan}, None, "run b", 5)

    writer.add_custom_scalars(
        {
            "loss": {"both": ["Multiline", ["loss/train", "special"]]},
            "bands": {"band": ["Margin", ["loss/train", "special", "large step"]], "two": ["Multiline", ["special"]]},
        }
    )
    vertices = torch.from_numpy(values(0, 24).reshape(2, 4, 3))
    colors = torch.from_numpy(bytes_(0, 24).reshape(2, 4, 3))
    faces = torch.tensor([[[0, 1, 2], [1, 2, 3]]] * 2)
    config = {"lights": [{"cls": "AmbientLight", "color": "#ffffff"}]}
    writer.add_mesh("mesh", vertices, colors, faces, config, 6, walltime=TIME)
    writer.add_mesh("cloud", vertices, global_step=6, walltime=TIME)


def write(folder):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(folder, purge_step=None) as writer:
        calls(writer)


def make():
    folder = HERE / "torch"
    shutil.rmtree(folder, ignore_errors=True)
    write(str(folder))
    for path in folder.rglob("events.out.tfevents.*"):
        path.rename(path.with_name("events"))


def runs_below(folder):
    return sorted({str(path.parent.relative_to(folder)) for path in Path(folder).rglob("events.out.tfevents.*")})


class Comparison:
    """Counts what is equal, and says what is not."""

    def __init__(self):
        self.equal, self.different = {}, []

    def same(self, what, name, ours, torch):
        if pixels(ours) == pixels(torch):
            self.equal[what] = self.equal.get(what, 0) + 1
        else:
            self.different.append(f"{what} {name}\n  ours:  {str(ours)[:600]}\n  torch: {str(torch)[:600]}")


def pixels(thing):
    """The same with pictures as pixels, and NaN as text, which is equal to itself."""
    if isinstance(thing, bytes) and thing.startswith(b"\x89PNG"):
        from PIL import Image

        picture = Image.open(io.BytesIO(thing))
        return (picture.size, picture.mode, picture.tobytes())
    if isinstance(thing, float):
        return float(f"{thing:.12g}") if math.isfinite(thing) else str(thing)
    if isinstance(thing, (list, tuple)):
        return [pixels(part) for part in thing]
    if isinstance(thing, dict):
        return {key: pixels(part) for key, part in thing.items() if key not in TIMES}
    return thing


# Times of hparams, custom scalars and starts of runs, which PyTorch takes from the clock.
TIMES = {"wall_time", "startTimeSecs", "endTimeSecs", "wallTimeSecs", "first_event_timestamp"}


def accumulated(folder):
    """Everything that TensorBoard's own reader finds in a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    events = EventAccumulator(folder, size_guidance={name: 0 for name in ["scalars", "histograms", "images", "tensors"]})
    events.Reload()
    tags = events.Tags()
    found = {"tags": {kind: sorted(names) if isinstance(names, list) else names for kind, names in tags.items()}}
    if "_hparams_/experiment" not in tags["tensors"] and not Path(folder).name.startswith("run "):
        found["times"] = {tag: [e.wall_time for e in events.Scalars(tag)] for tag in tags["scalars"]}
    found["scalars"] = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags["scalars"]}
    for tag in tags["histograms"]:
        found[f"histogram {tag}"] = [(e.step, sorted(vars(e.histogram_value).items())) for e in events.Histograms(tag)]
    for tag in tags["images"]:
        found[f"image {tag}"] = [(e.step, e.width, e.height, e.encoded_image_string) for e in events.Images(tag)]
    for tag in tags["tensors"]:
        found[f"tensor {tag}"] = [(e.step, tensor_util.make_ndarray(e.tensor_proto).tolist()) for e in events.Tensors(tag)]
        found[f"metadata {tag}"] = str(events.SummaryMetadata(tag))
    if tags["graph"]:
        found["graph"] = sorted(str(node) for node in events.Graph().node)
    return found


def serve(folder):
    from tensorboard import program

    board = program.TensorBoard()
    board.configure(argv=[None, "--logdir", str(folder), "--load_fast=false", "--port", "0", "--reload_interval", "1",
                          "--samples_per_plugin", "scalars=0,images=0,histograms=0,pr_curves=0,text=0,mesh=0"])
    return board.launch()


def fetch(url, path, data=None, **query):
    query = urllib.parse.urlencode(query)
    request = urllib.request.Request(f"{url}{path}?{query}", data=data and json.dumps(data).encode())
    if data:
        request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        body = answer.read()
        return json.loads(body) if "json" in answer.headers.get("Content-Type", "") else body


def compare_served(url, runs, comparison):
    deadline = time.monotonic() + 60
    wanted = {os.path.normpath(f"{whose}/{run}") for whose in ["ours", "torch"] for run in runs}
    while not wanted <= set(fetch(url, "data/runs")):
        assert time.monotonic() < deadline, f"the server shows only {fetch(url, 'data/runs')}"
        time.sleep(0.2)
    for plugin, route in [("scalars", "scalars"), ("histograms", "histograms"), ("images", "images"), ("text", "text"),
                          ("pr_curves", "pr_curves"), ("mesh", "meshes")]:
        tags = fetch(url, f"data/plugin/{plugin}/tags")
        for run in runs:
            ours, torch = (os.path.normpath(f"{whose}/{run}") for whose in ["ours", "torch"])
            comparison.same(f"served tags of {plugin}", run, tags.get(ours), tags.get(torch))
            for tag in tags.get(torch) or []:
                get = lambda run: answer(url, plugin, route, run, tag)  # noqa: B023, E731
                comparison.same(f"served {plugin}", f"{run} {tag}", get(ours), get(torch))
    graphs = [str(fetch(url, "data/plugin/graphs/graph", run=whose)) for whose in ["ours", "torch"]]
    comparison.same("served graph", "", *graphs)
    compare_projector(url, comparison)
    groups = [settings(url, whose) for whose in ["ours", "torch"]]
    comparison.same("served hparams", "", *groups)
    layouts = fetch(url, "data/plugin/custom_scalars/layout")
    comparison.same("served layout", "", bool(layouts), True)


def answer(url, plugin, route, run, tag):
    if plugin == "text":
        return fetch(url, "data/plugin/text/text", run=run, tag=tag)
    if plugin == "pr_curves":
        return [list(curve.items()) for curve in fetch(url, "data/plugin/pr_curves/pr_curves", run=run, tag=tag)[run]]
    samples = fetch(url, f"data/plugin/{plugin}/{route}", run=run, tag=tag, sample=0)
    if plugin == "images":
        return [(s["width"], s["height"], s["step"], fetch(url, f"data/plugin/images/individualImage?{s['query']}&x")) for s in samples]
    return samples


def compare_projector(url, comparison):
    runs = fetch(url, "data/plugin/projector/runs")
    for whose in ["ours", "torch"]:
        comparison.same("served runs of the projector", whose, whose in runs, True)
    configs = [fetch(url, "data/plugin/projector/info", run=whose) for whose in ["ours", "torch"]]
    for config in configs:
        config.pop("modelCheckpointPath", None)
    comparison.same("served projector", "info", *configs)
    for embedding in configs[1]["embeddings"]:
        name = embedding["tensorName"]
        for part in ["tensor", "metadata", "sprite_image"]:
            if part == "metadata" and "metadataPath" not in embedding or part == "sprite_image" and "sprite" not in embedding:
                continue
            ours, torch = (fetch(url, f"data/plugin/projector/{part}", run=whose, name=name) for whose in ["ours", "torch"])
            comparison.same(f"served {part} of the projector", name, ours, torch)


def settings(url, whose):
    request = {"experimentName": "", "allowedStatuses": ["STATUS_SUCCESS", "STATUS_UNKNOWN"], "startIndex": 0, "sliceSize": 100,
               "colParams": []}
    groups = fetch(url, "data/plugin/hparams/session_groups", data=request)["sessionGroups"]
    of = [group for group in groups if group["sessions"][0]["name"].startswith(f"{whose}/")]
    assert len(of) == 2, f"TensorBoard shows {len(of)} of the 2 runs with settings"
    text = json.dumps(sorted(of, key=lambda group: group["sessions"][0]["name"]))
    groups = json.loads(text.replace(f"{whose}/", ""))
    for group in groups:
        group.pop("name")  # a checksum of names
    return groups


def compare(ours):
    comparison = Comparison()
    with tempfile.TemporaryDirectory() as folder:
        write(f"{folder}/torch")
        shutil.copytree(ours, f"{folder}/ours")
        runs = runs_below(f"{folder}/torch")
        comparison.same("runs", "", runs_below(f"{folder}/ours"), runs)
        for run in runs:
            mine, theirs = accumulated(f"{folder}/ours/{run}"), accumulated(f"{folder}/torch/{run}")
            for what in mine.keys() | theirs.keys():
                comparison.same(f"read {what.split(' ')[0]}", f"{run} {what}", mine.get(what), theirs.get(what))
        compare_served(serve(folder), runs, comparison)
    for different in comparison.different:
        print(f"different: {different}")
    print("equal: " + ", ".join(f"{count} {what}" for what, count in sorted(comparison.equal.items())))
    sys.exit(1 if comparison.different else 0)


def resumed(ours):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for run, tag in [(ours, "loss"), (f"{ours}/both_of_a", "both/of")]:
        events = EventAccumulator(run)
        events.Reload()
        shown = [(event.step, event.value) for event in events.Scalars(tag)]
        assert shown == [(step, 1.0 if step < 4 else 2.0) for step in range(8)], f"{run} shows {shown}"


def time_calls(n):
    from torch.utils.tensorboard import SummaryWriter

    with tempfile.TemporaryDirectory() as folder, SummaryWriter(folder) as writer:
        for part in [n // 10, n]:
            begin = time.perf_counter_ns()
            for step in range(part):
                writer.add_scalar("loss/train", 0.5, step)
            took = (time.perf_counter_ns() - begin) / part
    print(took)


if __name__ == "__main__":
    with_tensorboard()
    match sys.argv[1:]:
        case ["make"]:
            make()
        case ["compare", ours]:
            compare(ours)
        case ["resumed", ours]:
            resumed(ours)
        case ["time", n]:
            time_calls(int(n))
        case _:
            sys.exit(__doc__)
