//! Profiles and graphs of models: operations name the modules that called them, and profiles also contain loaders and
//! optimizers.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pagelock_data::{DataLoader, TensorDataset};
use pagelock_nn::optim::{Adam, Optimizer, Sgd};
use pagelock_nn::{
    BatchNorm2d, Conv2d, Flatten, Forward, Layer, Linear, Module, ReLU, Sequential, functional, module_names,
    module_scope, record_graph,
};
use pagelock_tensor::profiler::{self, Category, NodeSource, Profile, Profiler, RecordedGraph};
use pagelock_tensor::{Int, Result, Tensor};

/// A process records only one profile at a time.
static ONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A residual block of the network `Net`. The two have children in an option, a list and a box.
#[derive(Module)]
struct Block {
    conv: Conv2d,
    norm: Option<BatchNorm2d>,
}

impl Forward for Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        let y = self.conv.forward(x)?;
        let y = self.norm.iter().try_fold(y, |y, norm| norm.forward(&y))?;
        (y + x)?.relu()
    }
}

#[derive(Module)]
struct Net {
    blocks: Vec<Block>,
    flatten: Flatten,
    head: Box<dyn Layer>,
    tail: Sequential,
}

impl Forward for Net {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.blocks.iter().try_fold(x.clone(), |x, block| block.forward(&x))?;
        self.tail.forward(&self.head.forward(&self.flatten.forward(&x)?)?)
    }
}

fn net() -> Net {
    let block = || Block { conv: Conv2d::new(2, 2, 3).unwrap().padding(1), norm: Some(BatchNorm2d::new(2).unwrap()) };
    let tail = Sequential::new((ReLU, Linear::new(5, 3).unwrap().without_bias()));
    let head = Box::new(Linear::new(2 * 4 * 4, 5).unwrap());
    Net { blocks: vec![block(), block()], flatten: Flatten::new(), head, tail }
}

fn images() -> Tensor {
    Tensor::ones([6, 2, 4, 4]).unwrap()
}

/// The modules that called an operation, each with its number of calls.
fn modules(profile: &Profile, key: &str) -> Vec<(String, u64)> {
    let table = profile.key_averages_by_module();
    let rows = table.iter().filter(|row| row.key == key);
    let mut all: Vec<_> = rows.map(|row| (row.module.clone().unwrap_or_default(), row.calls)).collect();
    all.sort();
    all
}

/// The events, each indented below its parent.
fn tree(profile: &Profile) -> String {
    let (events, mut text) = (profile.events(), String::new());
    for event in &events {
        let depth = std::iter::successors(event.parent, |&at| events[at].parent).count();
        text += &format!("{:indent$}{:?} {}\n", "", event.category, event.name, indent = 2 * depth);
    }
    text
}

fn counted<const N: usize>(expected: [(&str, u64); N]) -> Vec<(String, u64)> {
    expected.map(|(module, calls)| (module.to_owned(), calls)).to_vec()
}

#[test]
fn operations_have_the_paths_of_their_modules_forward_and_backward() {
    let _alone = alone();
    let (net, x) = (net(), images());
    let profile =
        Profiler::new().with_modules(module_names(&net)).profile(|| net.forward(&x)?.sum(..)?.backward()).unwrap();

    // One call each for the forward pass and for the gradients of weight and bias. The second convolution also
    // computes the gradient of its input.
    let convolutions = counted([("blocks.0.conv (Conv2d)", 2), ("blocks.1.conv (Conv2d)", 3)]);
    assert_eq!(modules(&profile, "conv2d"), convolutions, "{}", tree(&profile));
    let backward = counted([("blocks.0.conv (Conv2d)", 1), ("blocks.1.conv (Conv2d)", 1)]);
    assert_eq!(modules(&profile, "conv2d backward"), backward);
    let norms = counted([("blocks.0.norm (BatchNorm2d)", 1), ("blocks.1.norm (BatchNorm2d)", 1)]);
    assert_eq!(modules(&profile, "batch_norm"), norms);
    assert_eq!(modules(&profile, "linear backward"), counted([("head (Linear)", 1)]));
    assert_eq!(modules(&profile, "matmul backward"), counted([("tail.1 (Linear)", 1)]));
    let sums = counted([("blocks.0 (Block)", 1), ("blocks.1 (Block)", 1)]);
    assert_eq!(modules(&profile, "add backward"), sums);
    assert_eq!(modules(&profile, "sum backward"), counted([("", 1)]));
}

#[test]
fn children_of_a_sequential_have_positions_without_being_named() {
    let _alone = alone();
    let model = Sequential::new((Linear::new(4, 4).unwrap(), ReLU, Linear::new(4, 2).unwrap()));
    let x = Tensor::ones([3, 4]).unwrap();
    let profile = profiler::profile(|| model.forward(&x).map(drop)).unwrap();

    assert_eq!(modules(&profile, "linear"), counted([("0 (Linear)", 1), ("2 (Linear)", 1)]));
    assert_eq!(profile.key_averages().get("linear").unwrap().flops, 2 * 3 * 4 * 4 + 2 * 3 * 4 * 2);
    let calls: Vec<_> = profile.events().into_iter().filter(|event| event.category == Category::ModuleCall).collect();
    let calls: Vec<_> = calls.iter().map(|event| (&*event.name, event.parent)).collect();
    assert_eq!(calls[..2], [("(Sequential)", None), ("0 (Linear)", Some(0))]);
}

#[test]
fn names_of_an_earlier_profile_are_forgotten() {
    let _alone = alone();
    let (net, x) = (net(), images());
    let loss = Profiler::new().with_modules(module_names(&net));
    let mut kept = None;
    loss.profile(|| -> Result<()> {
        kept = Some(net.forward(&x)?.sum(..)?);
        Ok(())
    })
    .unwrap();
    let profile = profiler::profile(|| kept.unwrap().backward()).unwrap();

    assert_eq!(modules(&profile, "conv2d backward"), counted([("", 2)]));
}

#[test]
fn waits_for_batches_and_steps_of_optimizers_are_in_the_profile() {
    let _alone = alone();
    let rows = TensorDataset::new((Tensor::ones([40, 8]).unwrap(), Tensor::<Int>::full([40], 1).unwrap())).unwrap();
    for workers in [0, 2] {
        let loader = DataLoader::new(rows.clone()).batch_size(10).num_workers(workers);
        let model = Linear::new(8, 3).unwrap();
        let mut adam = Adam::new(model.parameters(), 1e-3);
        let mut sgd = Sgd::new(model.parameters(), 1e-3);
        let profile = profiler::profile(|| -> Result<(), Box<dyn std::error::Error>> {
            for batch in &loader {
                let (xb, yb) = batch?;
                functional::cross_entropy(&model.forward(&xb)?, &yb)?.backward()?;
                adam.step()?;
                sgd.step()?;
            }
            Ok(())
        });
        let profile = profile.unwrap();

        let table = profile.key_averages();
        let calls = |key: &str| table.get(key).map_or(0, |row| row.calls);
        assert_eq!([calls("Optimizer.step#Adam"), calls("Optimizer.step#Sgd")], [4, 4], "{table}");
        assert_eq!(calls("DataLoader.next"), 4, "{table}");
        assert_eq!(calls("DataLoader worker"), if workers > 0 { 4 } else { 0 }, "{table}");
        assert_eq!([calls("linear backward"), calls("cross_entropy backward")], [4, 4], "{table}");
    }
}

fn node<'a>(graph: &'a RecordedGraph, name: &str) -> &'a profiler::RecordedNode {
    let names: Vec<_> = graph.nodes.iter().map(|node| &node.name).collect();
    graph.nodes.iter().find(|node| node.name == name).unwrap_or_else(|| panic!("no {name} in {names:#?}"))
}

#[test]
fn a_graph_has_the_modules_parameters_and_shapes_of_the_forward() {
    let _alone = alone();
    let (net, x) = (net(), images());
    let graph = record_graph(&net, &x).unwrap();

    let inputs = |name: &str| -> Vec<&str> {
        node(&graph, name).inputs.iter().map(|&input| &*graph.nodes[input].name).collect()
    };
    let block = "Net/ModuleList[blocks]/Block[1]";
    let conv = format!("{block}/Conv2d[conv]");
    let before = "Net/ModuleList[blocks]/Block[0]/relu";
    let parameters = [format!("{conv}/weight"), format!("{conv}/bias")];
    assert_eq!(inputs(&format!("{conv}/conv2d")), [before, &parameters[0], &parameters[1]]);
    assert_eq!(node(&graph, &parameters[0]).source, NodeSource::Parameter);
    assert_eq!(inputs(&format!("{block}/add")), [&*format!("{block}/BatchNorm2d[norm]/batch_norm"), before]);
    assert_eq!(inputs("Net/ModuleList[blocks]/Block[0]/Conv2d[conv]/conv2d")[0], "input/input");
    assert_eq!(node(&graph, "Net/Linear[head]/linear").shape, [6, 5]);
    assert_eq!(inputs("output/output.1"), ["Net/Sequential[tail]/Linear[1]/matmul"]);
    assert!(graph.nodes.iter().all(|node| node.source != NodeSource::Constant), "{graph:#?}");
    for (at, node) in graph.nodes.iter().enumerate() {
        assert!(node.inputs.iter().all(|&input| input < at), "{node:?} comes before what it uses");
        assert!(graph.nodes.iter().filter(|other| other.name == node.name).count() == 1);
    }
}

#[test]
fn a_forward_that_fails_leaves_nothing_recorded_behind() {
    let _alone = alone();
    let net = net();
    let before = record_graph(&net, &images()).unwrap();
    let wrong = Tensor::ones([6, 3, 4, 4]).unwrap();
    assert!(record_graph(&net, &wrong).unwrap_err().to_string().starts_with("conv2d"));
    assert_eq!(record_graph(&net, &images()).unwrap(), before);
}
