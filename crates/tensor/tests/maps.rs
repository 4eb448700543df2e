//! Maps of tensors on the host: paths, batches, joining and cutting, and the text of every refusal.

use pagelock_tensor::{Error, Tensor, TensorMap};
use proptest::prelude::*;

fn map(values: &[f32]) -> TensorMap {
    let mut map = TensorMap::new([values.len()]).unwrap();
    map.set("x", Tensor::from_slice(values, [values.len()]).unwrap()).unwrap();
    map.set("in.ner", Tensor::from_slice(values, [values.len(), 1]).unwrap()).unwrap();
    map
}

fn values(map: &TensorMap, path: &str) -> Vec<f32> {
    map.get(path).unwrap().to_vec::<f32>().unwrap()
}

#[test]
fn what_was_set_is_found_and_what_was_removed_is_not() {
    let mut map = map(&[1.0, 2.0]);
    assert_eq!((map.len(), map.contains("in"), map.contains("in.ner"), map.contains("ner")), (2, true, true, false));
    assert_eq!(map.get_map("in").unwrap().len(), 1);
    assert_eq!(map.len_bytes(), 16);
    map.set("x", Tensor::full([2], 0).unwrap()).unwrap();
    assert_eq!(map.get_int("x").unwrap().to_vec::<i64>().unwrap(), [0, 0]);
    assert!(map.remove("in.ner").unwrap() && !map.remove("in.ner").unwrap() && !map.remove("no.where").unwrap());
    assert!(map.contains("in") && map.get_map("in").unwrap().is_empty());
    assert!(map.remove("in").unwrap());
    assert_eq!(map.iter().map(|(path, _)| path).collect::<Vec<_>>(), ["x"]);
}

#[test]
fn a_map_within_a_map_may_have_a_longer_batch() {
    let mut outer = TensorMap::new([2]).unwrap();
    let mut inner = TensorMap::new([2, 3]).unwrap();
    inner.set("x", Tensor::zeros([2, 3, 4]).unwrap()).unwrap();
    outer.set_map("inner", inner).unwrap();
    assert!(outer.set("inner.y", Tensor::zeros([2, 4]).unwrap()).is_err(), "the inner batch holds");
    assert_eq!(outer.select(0, 1).unwrap().get_map("inner").unwrap().batch(), &[3]);
    assert!(outer.set_map("other", TensorMap::new([3, 2]).unwrap()).is_err());
}

#[test]
fn a_clone_has_the_same_tensors_and_entries_of_its_own() {
    let map = map(&[1.0]);
    let mut clone = map.clone();
    clone.get("x").unwrap().fill_(5.0).unwrap();
    clone.remove("in").unwrap();
    assert_eq!((values(&map, "x"), map.len()), (vec![5.0], 2));
}

#[test]
fn refusals_name_the_path_the_shapes_and_the_way_out() {
    let mut map = map(&[1.0, 2.0]);
    let x = || Tensor::zeros([2]).unwrap();
    let refused = |error: Result<(), Error>| error.unwrap_err().to_string();
    let cases = [
        (
            refused(map.set("", x())),
            "`` is not a path in a map: a name is empty; write names joined with dots, as in `agent.state`",
        ),
        (
            refused(map.set("a..b", x())),
            "`a..b` is not a path in a map: a name is empty; write names joined with dots, as in `agent.state`",
        ),
        (
            refused(map.set("x.y", x())),
            "`x` is a tensor and holds no names; end the path there, or remove the tensor first",
        ),
        (
            refused(map.set("y", Tensor::zeros(()).unwrap())),
            "`y` is [], but shapes in this map must begin with its batch, [2]; reshape or narrow the tensor, or put it \
             in a map of another batch",
        ),
        (refused(map.get_any("z").map(drop)), "there is no `z` in the map: it has in, x; check the path"),
        (refused(map.get_any("in.z").map(drop)), "there is no `in.z` in the map: `in` has ner; check the path"),
        (
            refused(map.get_any("x.z").map(drop)),
            "`x` is a tensor and holds no names; end the path there, or remove the tensor first",
        ),
        (
            refused(map.get("in").map(drop)),
            "`in` is a map of ner; name one of its tensors, or ask for the map with `get_map`",
        ),
        (
            refused(map.get_int("in.ner").map(drop)),
            "`in.ner`: the tensor is float32 [2, 1], not integer; read it as its own kind, then convert it",
        ),
        (refused(map.select(1, 0).map(drop)), "select: there is no dimension 1 in [2]: use 0, or -1 from the end"),
        (
            refused(map.select(0, 2).map(drop)),
            "`in.ner`: select: index 2 is out of range for dimension 0 of [2, 1]: use 0 to 1, or -2 to -1 from the end",
        ),
        (refused(TensorMap::stack(&[], 0).map(drop)), "stack: the list of maps is empty; give at least one"),
    ];
    for (text, wanted) in cases {
        assert_eq!(text, wanted);
    }
    assert_eq!(map.len(), 2, "nothing was changed");
}

#[test]
fn maps_that_differ_are_not_joined() {
    let (one, two) = (map(&[1.0, 2.0]), map(&[3.0]));
    let text = |maps: &[&TensorMap]| TensorMap::stack(maps, 0).unwrap_err().to_string();
    let fix = "give maps of the same names and batches";
    assert_eq!(
        text(&[&one, &two]),
        format!("stack: map 1 is not like the first: its batch is [1], but the first one's is [2]; {fix}")
    );
    let mut more = one.clone();
    more.set("more", Tensor::zeros([2]).unwrap()).unwrap();
    assert_eq!(
        text(&[&one, &more]),
        format!("stack: map 1 is not like the first at `more`: the first map has no such entry; {fix}")
    );
    assert_eq!(
        text(&[&more, &one]),
        format!("stack: map 1 is not like the first at `more`: it has no such entry, but the first map has; {fix}")
    );
    let mut other = one.clone();
    other.set("in", Tensor::zeros([2]).unwrap()).unwrap();
    assert_eq!(
        text(&[&one, &other]),
        format!("stack: map 1 is not like the first at `in`: one is a tensor, the other a map; {fix}")
    );
    other.set_map("in", TensorMap::new([2]).unwrap()).unwrap();
    other.set("in.ner", Tensor::full([2, 1], 0).unwrap()).unwrap();
    assert_eq!(
        text(&[&one, &other]),
        "`in.ner`: the tensor is int64 [2, 1], not float; read it as its own kind, then convert it"
    );
}

#[test]
fn maps_are_stacked_and_joined_like_their_tensors() {
    let (one, two) = (map(&[1.0, 2.0]), map(&[3.0, 4.0]));
    let stacked = TensorMap::stack(&[&one, &two], -1).unwrap();
    assert_eq!(stacked.batch(), &[2, 2]);
    assert_eq!(stacked.get_map("in").unwrap().batch(), &[2, 2]);
    assert_eq!(values(&stacked, "x"), [1.0, 3.0, 2.0, 4.0]);
    assert_eq!(stacked.get("in.ner").unwrap().dims(), [2, 2, 1]);
    let joined = TensorMap::cat(&[&one, &two, &map(&[5.0])], 0).unwrap();
    assert_eq!((joined.batch().to_vec(), values(&joined, "in.ner")), (vec![5], vec![1.0, 2.0, 3.0, 4.0, 5.0]));
}

#[test]
fn maps_are_not_nested_without_end() {
    let mut map = TensorMap::new(()).unwrap();
    let deep = vec!["a"; 64].join(".");
    map.set(&deep, Tensor::zeros(()).unwrap()).unwrap();
    let deeper = vec!["a"; 100_000].join(".");
    let error = map.set(&deeper, Tensor::zeros(()).unwrap()).unwrap_err().to_string();
    assert!(error.contains("nested too deeply") && error.len() < 400, "{error}");
    let mut outer = TensorMap::new(()).unwrap();
    assert!(outer.set_map("a", map).is_err());
    assert!(outer.get_any(&deeper).unwrap_err().to_string().len() < 400);
}

#[test]
fn a_map_prints_what_it_holds() {
    assert_eq!(format!("{:?}", TensorMap::new([2]).unwrap()), "TensorMap [2] {}");
    assert_eq!(
        format!("{:?}", map(&[1.0])),
        "TensorMap [1] {\n    in.ner: float32 [1, 1] on cpu\n    x: float32 [1] on cpu\n}"
    );
}

proptest! {
    #[test]
    fn cutting_a_batch_and_joining_the_parts_gives_it_back(rows in prop::collection::vec(any::<f32>(), 1..20), at in any::<prop::sample::Index>()) {
        let map = map(&rows);
        let at = at.index(rows.len() + 1);
        let (low, high) = (map.narrow(0, 0, at)?, map.narrow(0, at, rows.len() - at)?);
        let joined = TensorMap::cat(&[&low, &high], 0)?;
        let bits = |map: &TensorMap| values(map, "in.ner").iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(&joined), bits(&map));
        let picked = (0..rows.len()).map(|row| map.select(0, row as isize)).collect::<Result<Vec<_>, _>>()?;
        let stacked = TensorMap::stack(&picked.iter().collect::<Vec<_>>(), 0)?;
        prop_assert_eq!(bits(&stacked), bits(&map));
        let index: Vec<i64> = (0..rows.len() as i64).collect();
        prop_assert_eq!(bits(&map.index_select(0, &Tensor::from_slice(&index, [rows.len()])?)?), bits(&map));
    }
}

#[test]
fn indices_of_a_map_without_tensors_are_checked() {
    let map = TensorMap::new([3]).unwrap();
    assert!(map.select(0, 99).is_err() && map.select(0, -4).is_err());
    assert!(map.narrow(0, 5, 100).is_err() && map.narrow(0, 0, usize::MAX).is_err());
    assert!(map.index_select(0, &Tensor::new([0, 3]).unwrap()).is_err());
    assert_eq!(map.select(0, -1).unwrap().batch().rank(), 0);
    assert_eq!(map.narrow(0, 1, 2).unwrap().batch(), &[2]);
    assert_eq!(map.index_select(0, &Tensor::new([2, 2, 0, 1]).unwrap()).unwrap().batch(), &[4]);
}
