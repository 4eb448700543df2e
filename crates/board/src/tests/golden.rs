//! The same calls give the same events as PyTorch's writer, whose files are in `tests/golden/torch`.

use std::fs;
use std::path::{Path, PathBuf};

use prost::Message;

use super::{calls, events, folder, read, writer};
use crate::proto::{Content, Event, GraphDef, HParamsPlugin, MeshPlugin, Summary, Value, What};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/torch").join(name)
}

/// The width, height, color type and pixels of a PNG.
fn pixels(png: &[u8]) -> (u32, u32, png::ColorType, Vec<u8>) {
    let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut bytes).unwrap();
    (info.width, info.height, info.color_type, bytes)
}

/// An event as text, to compare ours with PyTorch's: without times that PyTorch took from the clock, with pictures as
/// pixels, sums to twelve digits, and nested messages decoded, since their maps have no order.
fn normal(mut event: Event) -> String {
    if event.wall_time.fract() != 0.0 {
        event.wall_time = 0.0;
    }
    let mut inner = String::new();
    if let Some(What::Summary(Summary { value: values })) = &mut event.what {
        values.iter_mut().for_each(|value| inner += &normal_value(value));
    }
    if let Some(What::Graph(graph)) = &mut event.what {
        inner = format!("{:?}", GraphDef::decode(std::mem::take(graph).as_slice()).unwrap());
    }
    format!("{event:?} {inner}")
}

fn normal_value(value: &mut Value) -> String {
    match &mut value.content {
        Some(Content::Image(image)) => return format!("{:?}", pixels(&std::mem::take(&mut image.png))),
        Some(Content::Histogram(histogram)) => {
            let sums = [&mut histogram.sum, &mut histogram.sum_squares].map(std::mem::take);
            return sums.map(|sum| format!("{sum:.12e} ")).concat();
        }
        _ => {}
    }
    let Some(plugin) = value.metadata.as_mut().and_then(|metadata| metadata.plugin_data.as_mut()) else {
        return String::new();
    };
    match plugin.plugin_name.as_str() {
        "hparams" => format!("{:?}", HParamsPlugin::decode(std::mem::take(&mut plugin.content).as_slice()).unwrap()),
        "mesh" => format!("{:?}", MeshPlugin::decode(std::mem::take(&mut plugin.content).as_slice()).unwrap()),
        _ => String::new(),
    }
}

#[test]
fn the_same_calls_write_the_same_events_and_files_as_pytorch() {
    let folder = folder();
    let writer = writer(&folder);
    calls::all(&writer).unwrap();
    writer.close().unwrap();

    for run in ["", "both_of_a", "both_of_b", "run a", "run b"] {
        let torch = events(&fs::read(golden(run).join("events")).unwrap());
        let ours = read(&folder.path().join(run));
        for (ours, torch) in ours.iter().zip(&torch) {
            let time_of_torch = |event: &Event| Event { wall_time: torch.wall_time, ..event.clone() };
            let is_timed =
                torch.wall_time.fract() == 0.0 && run.is_empty() && !matches!(ours.what, Some(What::Graph(_)));
            let ours = if is_timed { ours.clone() } else { time_of_torch(ours) };
            assert_eq!(normal(ours), normal(torch.clone()), "{run}");
        }
        assert_eq!(ours.len(), torch.len(), "{run}");
    }
    for file in ["projector_config.pbtxt", "00003/a%2fb%25/metadata.tsv", "00003/columns/metadata.tsv"] {
        let read = |path| fs::read_to_string(path).unwrap();
        assert_eq!(read(folder.path().join(file)), read(golden(file)), "{file}");
    }
    for file in ["00003/a%2fb%25/tensors.tsv", "00003/columns/tensors.tsv", "00000/default/tensors.tsv"] {
        let numbers = |path: PathBuf| {
            let text = fs::read_to_string(path).unwrap();
            text.lines()
                .map(|line| line.split('\t').map(|cell| cell.parse().unwrap()).collect())
                .collect::<Vec<Vec<f32>>>()
        };
        assert_eq!(numbers(folder.path().join(file)), numbers(golden(file)), "{file}");
    }
    let sprite = |path| pixels(&fs::read(path).unwrap());
    let file = "00003/a%2fb%25/sprite.png";
    assert_eq!(sprite(folder.path().join(file)), sprite(golden(file)));
}
