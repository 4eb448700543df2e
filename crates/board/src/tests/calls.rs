//! The calls of `tests/golden/torch_board.py`, in the same order, with our writer.

use pagelock_board::{
    Array, Bins, Chart, Embedding, GraphNode, GridOptions, HParams, Mesh, Result, Step, SummaryWriter, make_grid,
};

const TIME: f64 = 1.7e9;

fn value(i: usize) -> f64 {
    (i as u64 * 2_654_435_761 % (1 << 32)) as f64 / (1u64 << 32) as f64
}

fn values(begin: usize, n: usize) -> Vec<f32> {
    (begin..begin + n).map(|i| value(i) as f32).collect()
}

fn bytes(begin: usize, n: usize) -> Vec<u8> {
    values(begin, n).into_iter().map(|value| (value * 256.0) as u8).collect()
}

fn at(step: u64) -> Step {
    Step::from(step).at(TIME)
}

pub(crate) fn all(writer: &SummaryWriter) -> Result<()> {
    scalars(writer)?;
    histograms(writer)?;
    images(writer)?;
    grids(writer)?;
    writer.add_text("notes", "**bold** – \"text\"\n\n| a | b |", at(4))?;
    curves(writer)?;
    embeddings(writer)?;
    graph(writer)?;
    hparams(writer)?;
    charts(writer)?;
    meshes(writer)
}

fn scalars(writer: &SummaryWriter) -> Result<()> {
    for step in 0..10usize {
        writer.add_scalar("loss/train", value(step), Step::from(step).at(TIME + step as f64))?;
    }
    let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-40, 3.4e38, -0.0, 1e300];
    for (step, number) in special.into_iter().enumerate() {
        writer.add_scalar("special", number, at(step as u64))?;
    }
    writer.add_scalar("large step", 1.0, at(1 << 62))?;
    for step in 0..3 {
        writer.add_scalars("both/of", &[("a", value(step)), ("b", -value(step))], at(step as u64))?;
    }
    Ok(())
}

fn histograms(writer: &SummaryWriter) -> Result<()> {
    for step in 0..3 {
        let weights: Vec<f32> = values(1000 * step, 1000).into_iter().map(|value| value - 0.5).collect();
        writer.add_histogram("weights", &weights, at(step as u64))?;
    }
    writer.add_histogram("zero", &[0.0], at(0))?;
    writer.add_histogram("wide", &[-1e25, 1e-13, 5.0, 5.0, f64::INFINITY], at(0))?;
    writer.add_histogram("integers", &[-3i64, 0, 0, 7], at(0))?;
    writer.add_histogram_in("equal", &values(7, 100), Bins::Equal(30), at(0))?;
    writer.add_histogram_in("same", &[2.0, 2.0], Bins::Equal(4), at(0))?;
    writer.add_histogram_in("edges", &values(7, 100), Bins::Edges(vec![0.1, 0.5, 0.6]), at(0))
}

fn images(writer: &SummaryWriter) -> Result<()> {
    let beyond: Vec<f32> = values(0, 105).into_iter().map(|value| value * 1.5 - 0.25).collect();
    writer.add_image("color", &Array::new(&beyond, [3, 5, 7])?, at(1))?;
    writer.add_image("gray", &Array::new(&bytes(0, 24), [1, 4, 6])?, at(1))?;
    writer.add_image_as("rgba", &Array::new(&bytes(0, 60), [3, 5, 4])?, "HWC", at(1))?;
    writer.add_image_as("hw", &Array::new(&values(0, 15), [3, 5])?, "HW", at(1))?;
    writer.add_image_as("wh", &Array::new(&values(0, 15), [3, 5])?, "WH", at(1))?;
    writer.add_image_as("tall", &Array::new(&values(0, 45), [5, 3, 3])?, "WHC", at(1))?;
    writer.add_images("many", &Array::new(&values(0, 600), [10, 3, 4, 5])?, at(1))?;
    writer.add_image_as("gray many", &Array::new(&bytes(0, 60), [3, 4, 5, 1])?, "NHWC", at(1))
}

fn grids(writer: &SummaryWriter) -> Result<()> {
    let usual = GridOptions::default;
    let [pictures, grays] = [values(3, 600), values(3, 600).into_iter().map(|value| value * 3.0 - 1.0).collect()];
    let pictures = Array::new(&pictures, [10, 3, 4, 5])?;
    let shifted = Array::new(&grays, [10, 3, 4, 5])?;
    let grays = bytes(3, 60);
    let grays = Array::new(&grays, [3, 1, 4, 5])?;
    let first = values(3, 60);
    let (single, flat) = (Array::new(&first, [1, 3, 4, 5])?, Array::new(&first[..20], [4, 5])?);
    let normal = GridOptions { nrow: 4, normalize: true, pad_value: 0.5, ..usual() };
    let range = GridOptions { padding: 0, normalize: true, value_range: Some((0.25, 0.5)), ..usual() };
    let grids = [
        ("plain", &pictures, usual()),
        ("gray", &grays, GridOptions { nrow: 2, padding: 1, pad_value: 9.0, ..usual() }),
        ("normal", &shifted, normal),
        ("each", &shifted, GridOptions { normalize: true, scale_each: true, ..usual() }),
        ("range", &pictures, range),
        ("single", &single, usual()),
        ("flat", &flat, usual()),
    ];
    for (name, pictures, options) in grids {
        writer.add_image(&format!("grid/{name}"), &make_grid(pictures, options)?, at(1))?;
    }
    Ok(())
}

fn curves(writer: &SummaryWriter) -> Result<()> {
    let labels: Vec<i64> = values(50, 200).into_iter().map(|value| i64::from(value > 0.6)).collect();
    writer.add_pr_curve("curve", &labels, &values(400, 200), at(2))?;
    writer.add_pr_curve_at("short curve", &labels, &values(400, 200), 10, at(2))?;
    writer.add_pr_curve("sure", &[1i64, 0], &[1.0f32, 0.0], at(2))
}

fn embeddings(writer: &SummaryWriter) -> Result<()> {
    let (points, pictures) = (values(0, 50), values(0, 480));
    let (points, pictures) = (Array::new(&points, [10, 5])?, Array::new(&pictures, [10, 3, 4, 4])?);
    let labels = (0..10).map(|i| format!("label {i}"));
    writer.add_embedding("a/b%", &Embedding::new(&points)?.labels(labels).images(&pictures)?, 3)?;
    let rows = (0..10).map(|i| [i.to_string(), format!("é{i}")]);
    writer.add_embedding("columns", &Embedding::new(&points)?.columns(["number", "name"], rows), 3)?;
    writer.add_embedding("default", &Embedding::new(&points)?, 0)
}

fn graph(writer: &SummaryWriter) -> Result<()> {
    writer.add_graph(&[
        GraphNode::new("input/x", "IO Node").shape([4, 784]),
        GraphNode::new("net/fc/weight", "Parameter").shape([10, 784]).attributes("{ grad : True}"),
        GraphNode::new("net/fc/linear", "aten::linear").input("input/x").input("net/fc/weight").shape([4, 10]),
        GraphNode::new("net/scalar", "prim::Constant"),
        GraphNode::new("output/y", "IO Node").input("net/fc/linear").shape([4, 10]),
    ])
}

fn hparams(writer: &SummaryWriter) -> Result<()> {
    let run = |lr: f64| HParams::new().set("lr", lr).set("layers", 3);
    let a = run(0.125).set_one_of("optimizer", "sgd", ["sgd", "adam"]).run_name("run a");
    writer.add_hparams(&a.metric("hparam/accuracy", 0.75).metric("hparam/loss", 0.5), 5)?;
    let b = run(0.25).set("optimizer", "sgd").run_name("run b");
    writer.add_hparams(&b.metric("hparam/accuracy", 0.5).metric("hparam/loss", f64::NAN), 5)
}

fn charts(writer: &SummaryWriter) -> Result<()> {
    let band = Chart::margin("band", ["loss/train", "special", "large step"]);
    writer.add_custom_scalars(&[
        ("loss", vec![Chart::multiline("both", ["loss/train", "special"])]),
        ("bands", vec![band, Chart::multiline("two", ["special"])]),
    ])
}

fn meshes(writer: &SummaryWriter) -> Result<()> {
    let (vertices, colors) = (values(0, 24), bytes(0, 24));
    let (vertices, colors) = (Array::new(&vertices, [2, 4, 3])?, Array::new(&colors, [2, 4, 3])?);
    let faces = [0i64, 1, 2, 1, 2, 3].repeat(2);
    let faces = Array::new(&faces, [2, 2, 3])?;
    let config = r##"{"lights": [{"cls": "AmbientLight", "color": "#ffffff"}]}"##;
    let mesh = Mesh::new(&vertices)?.colors(&colors)?.faces(&faces)?.config(config);
    writer.add_mesh("mesh", &mesh, at(6))?;
    writer.add_mesh("cloud", &Mesh::new(&vertices)?, at(6))
}
