//! The part of an error's message that says what to do.

use crate::element::DType;

pub(super) fn saved_types(saved: &[DType]) -> String {
    match saved {
        [] => "none".to_string(),
        _ => saved.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", "),
    }
}

pub(super) fn places_hint(places: usize) -> String {
    match places {
        0 => "it is a scalar and has none; reshape it to [1] first".to_string(),
        1 => "use 0, or -1 from the end".to_string(),
        _ => format!("use 0 to {}, or -{places} to -1 from the end", places - 1),
    }
}

pub(super) fn index_hint(size: usize, from_end: bool) -> String {
    match (size, from_end) {
        (0, _) => "it is empty; check for a batch or an index without elements".to_string(),
        (_, true) => format!("use 0 to {}, or -{size} to -1 from the end", size - 1),
        (_, false) => format!("use 0 to {}", size - 1),
    }
}
