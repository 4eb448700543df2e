//! Invalid arguments return an error with numbers, and write nothing.

use std::fs;

use super::{folder, read, writer};
use crate::{
    Array, Bins, Chart, Embedding, Error, GraphNode, GridOptions, HParams, Mesh, Result, SummaryWriter, make_grid,
};

fn refused<T>(result: Result<T>) -> String {
    match result {
        Err(Error::Argument(text)) => text,
        Err(other) => panic!("{other} is another error"),
        Ok(_) => panic!("nothing was refused"),
    }
}

/// Runs `calls` with a writer, and checks that they wrote nothing.
fn refusals(calls: impl FnOnce(&SummaryWriter) -> Vec<String>) -> Vec<String> {
    let folder = folder();
    let writer = writer(&folder);
    let texts = calls(&writer);
    writer.close().unwrap();
    assert_eq!(read(folder.path()).len(), 1, "only the version");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    texts
}

#[test]
fn tags_and_steps() {
    let texts = refusals(|writer| {
        let long = "x".repeat(16 * 1024 + 1);
        vec![
            refused(writer.add_scalar("", 1.0, 0)),
            refused(writer.add_scalar(&long, 1.0, 0)),
            refused(writer.add_scalar("loss", 1.0, u64::MAX)),
            refused(writer.add_text("", "text", 0)),
            refused(writer.add_scalars("", &[("train", 1.0)], 0)),
            refused(writer.add_scalars("loss", &[("", 1.0)], 0)),
            refused(writer.add_scalars("loss", &[("a/../../../b", 1.0)], 0)),
            refused(writer.add_scalars("loss", &[("train", 1.0), ("", 2.0)], 0)),
            refused(writer.add_scalars("loss", &[("train", 1.0)], u64::MAX)),
            refused(writer.add_hparams(&HParams::new().metric("loss", 1.0).run_name("run"), u64::MAX)),
            refused(writer.add_pr_curve_at("curve", &[1.0], &[1.25], 3, 0)),
        ]
    });
    assert_eq!(
        texts,
        [
            "a tag is empty; name what is shown, such as \"loss/train\"",
            "a tag has 16385 bytes; TensorBoard takes at most 16384",
            "the step 18446744073709551615 is too big: the largest is 9223372036854775807",
            "a tag is empty; name what is shown, such as \"loss/train\"",
            "a tag is empty; name what is shown, such as \"loss/train\"",
            "a curve of `loss` has an empty name; name it",
            "`loss_a/../../../b` is not a folder below the writer's; leave out `..`",
            "a curve of `loss` has an empty name; name it",
            "the step 18446744073709551615 is too big: the largest is 9223372036854775807",
            "the step 18446744073709551615 is too big: the largest is 9223372036854775807",
            "a prediction of the curve `curve` is 1.25, not between 0 and 1; use softmax or sigmoid",
        ]
    );
}

#[test]
fn histograms() {
    let texts = refusals(|writer| {
        let none: [f32; 0] = [];
        let values = [1.0, 2.0];
        vec![
            refused(writer.add_histogram("h", &none, 0)),
            refused(writer.add_histogram("h", &[f64::NAN], 0)),
            refused(writer.add_histogram_in("h", &values, Bins::Equal(0), 0)),
            refused(writer.add_histogram_in("h", &[1.0, f64::INFINITY], Bins::Equal(3), 0)),
            refused(writer.add_histogram_in("h", &values, Bins::Edges(vec![1.0, f64::NAN]), 0)),
        ]
    });
    assert_eq!(
        texts,
        [
            "the histogram `h` has no values",
            "none of the 1 values of the histogram `h` lies between -9.920775621859783e19 and 9.920775621859783e19",
            "the histogram `h` cannot have 0 buckets, only 1 to 1048576",
            "the values of the histogram `h` are not all finite (1 to inf); give edges for them",
            "the histogram `h` needs two or more edges in increasing order",
        ]
    );
}

#[test]
fn pictures() {
    let bytes = [0u8; 70_000];
    let array =
        |shape: &[usize]| Array::new(&bytes[..shape.iter().copied().fold(1, usize::saturating_mul)], shape).unwrap();
    let texts = refusals(|writer| {
        vec![
            refused(writer.add_image("i", &array(&[4, 5]), 0)),
            refused(writer.add_image("i", &array(&[5, 4, 5]), 0)),
            refused(writer.add_image("i", &array(&[3, 0, 5]), 0)),
            refused(writer.add_image_as("i", &array(&[0, usize::MAX, usize::MAX, 3]), "WHNC", 0)),
            refused(writer.add_image("i", &array(&[1, 1, 65_536]), 0)),
            refused(writer.add_images("i", &array(&[2, 4, 5, 5]), 0)),
            refused(writer.add_image_as("i", &array(&[3, 4, 5]), "CHC", 0)),
            refused(writer.add_image_as("i", &array(&[3, 4, 5]), "Ä", 0)),
            refused(make_grid(&array(&[7]), GridOptions::default())),
            refused(make_grid(&array(&[2, 3, 4, 5]), GridOptions { nrow: 0, ..GridOptions::default() })),
            refused(make_grid(&array(&[2, 3, 4, 5]), GridOptions { normalize: true, ..GridOptions::default() })),
            refused(make_grid(
                &array(&[2, 3, 4, 5]),
                GridOptions { padding: usize::MAX / 2, ..GridOptions::default() },
            )),
        ]
    });
    assert_eq!(
        texts,
        [
            "a picture of the shape [4, 5] is not `CHW`; name its format",
            "a picture of the shape [5, 4, 5], `CHW`, has 5 channels; give 1 to 4",
            "1 pictures of 0 × 5 pixels have no pixels",
            "18446744073709551615 pictures of 18446744073709551615 × 0 pixels have no pixels",
            "a picture of 65536 × 1 pixels is too big: a side has at most 65535",
            "a picture of the shape [2, 4, 5, 5], `NCHW`, has 4 channels; give 1 or 3",
            "`CHC` is not a picture format; write \"CHW\", \"HWC\", \"HW\", \"NCHW\" or the like",
            "`Ä` is not a picture format; write \"CHW\", \"HWC\", \"HW\", \"NCHW\" or the like",
            "pictures have the shape [7], not [pictures, channels, height, width]",
            "pictures of the shape [2, 3, 4, 5] in rows of 0 have no pixels",
            "bytes cannot be normalized; convert the pictures to f32",
            "a grid of 2 pictures with a padding of 9223372036854775807 is too big",
        ]
    );
}

#[test]
fn curves_and_points() {
    let texts = refusals(|writer| {
        let points = Array::new(&[0.5f32; 6], [3, 2]).unwrap();
        let embedding = || Embedding::new(&points).unwrap();
        let large = vec![0u8; 3 * 4097];
        let large = Array::new(&large, [3, 1, 1, 4097]).unwrap();
        vec![
            refused(writer.add_pr_curve("c", &[1i64], &[0.5f32, 0.1], 0)),
            refused(writer.add_pr_curve("c", &[2i64], &[0.5f32], 0)),
            refused(writer.add_pr_curve("c", &[1i64], &[1.5f32], 0)),
            refused(writer.add_pr_curve("c", &[1i64], &[f32::NAN], 0)),
            refused(writer.add_pr_curve_at("c", &[1i64], &[0.5f32], 128, 0)),
            refused(writer.add_embedding("e", &Embedding::new(&[0.5f32; 3]).unwrap(), 0)),
            refused(writer.add_embedding("e", &embedding().labels(["a"]), 0)),
            refused(writer.add_embedding("e", &embedding().labels(["a", "b\tc", "d"]), 0)),
            refused(writer.add_embedding("e", &embedding().columns(["x", "y"], [["1"]; 3]), 0)),
            refused(writer.add_embedding("e", &embedding().images(&large).unwrap(), 0)),
        ]
    });
    assert_eq!(
        texts,
        [
            "the curve `c` has 1 labels for 2 predictions",
            "a label of the curve `c` is 2, neither 0 nor 1",
            "a prediction of the curve `c` is 1.5, not between 0 and 1; use softmax or sigmoid",
            "a prediction of the curve `c` is NaN, not between 0 and 1; use softmax or sigmoid",
            "the curve `c` cannot have 128 thresholds, only 2 to 127",
            "the embedding `e` has the shape [3], not [points, dimensions]",
            "the embedding `e` has 1 labels for 3 points",
            "the cell \"b\\tc\" of the embedding `e` has a tab or line break",
            "a row of the embedding `e` has 1 cells for 2 columns",
            "the 3 pictures of the embedding `e` need 8194 × 2 pixels, and the projector takes 8192 × 8192; make them \
             smaller",
        ]
    );
}

#[test]
fn graphs_charts_settings_and_meshes() {
    let texts = refusals(|writer| {
        let node = |name: &str| GraphNode::new(name, "add");
        let points = Array::new(&[0.5f32; 6], [1, 2, 3]).unwrap();
        let faces = Array::new(&[0i64, 1, 2], [1, 1, 3]).unwrap();
        vec![
            refused(writer.add_graph(&[])),
            refused(writer.add_graph(&[node("a"), node("a")])),
            refused(writer.add_graph(&[node("a").input("b")])),
            refused(writer.add_custom_scalars(&[])),
            refused(writer.add_custom_scalars(&[("c", vec![Chart::multiline("none", [""; 0])])])),
            refused(writer.add_hparams(&HParams::new().set("lr", 1.0).set("lr", 2.0), 0)),
            refused(writer.add_hparams(&HParams::new().set_one_of("lr", 1.0, ["a"]), 0)),
            refused(writer.add_hparams(&HParams::new().run_name("../other"), 0)),
            refused(writer.add_mesh("m", &Mesh::new(&[1.0f32]).unwrap(), 0)),
            refused(writer.add_mesh("m", &Mesh::new(&points).unwrap().faces(&faces).unwrap(), 0)),
        ]
    });
    assert_eq!(
        texts,
        [
            "the graph has no nodes",
            "two nodes of the graph have the name `a`",
            "the input `b` of `a` is not a node of the graph",
            "the layout has no categories",
            "the chart `none` has no curves",
            "the setting `lr` is given twice",
            "the setting `lr` is a number, but one of its possible values is a string",
            "`../other` is not a folder below the writer's; leave out `..`",
            "the vertices of `m` have the shape [1], not [meshes, points, 3]",
            "a face of `m` names point 2; there are only 2",
        ]
    );
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let folder = folder();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = SummaryWriter::new(file.join("run")).unwrap_err();
    assert!(matches!(error, Error::Create { .. }));
    assert!(error.to_string().starts_with(&format!("cannot create `{}`: ", file.join("run").display())), "{error}");
}
