//! The walkthrough's network, and its graph.

use pagelock::board::GraphNode;
use pagelock::nn::functional as F;
use pagelock::prelude::*;
use pagelock::tensor::Result;

/// Two convolutions, each with ReLU and pooling, and three linear layers.
#[derive(Module)]
pub(crate) struct Net {
    conv1: Conv2d,
    pool: MaxPool2d,
    conv2: Conv2d,
    fc1: Linear,
    fc2: Linear,
    fc3: Linear,
}

impl Net {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            conv1: Conv2d::new(1, 6, 5)?,
            pool: MaxPool2d::new(2),
            conv2: Conv2d::new(6, 16, 5)?,
            fc1: Linear::new(16 * 4 * 4, 120)?,
            fc2: Linear::new(120, 84)?,
            fc3: Linear::new(84, 10)?,
        })
    }

    /// What `forward` does with `n` pictures: each operation with the shape of its result, and the parameters that it
    /// uses.
    pub(crate) fn graph(&self, n: usize) -> Vec<GraphNode> {
        let mut nodes = vec![GraphNode::new("input/images", "IO Node").shape([n, 1, 28, 28])];
        let parameters: Vec<(String, Vec<usize>)> = self
            .named_parameters()
            .into_iter()
            .map(|(name, parameter)| {
                (format!("Net/{}", name.replace('.', "/")), parameter.as_tensor().shape().to_vec())
            })
            .collect();
        let shape_nodes = parameters.iter().map(|(name, shape)| GraphNode::new(name, "Parameter").shape(shape.clone()));
        nodes.extend(shape_nodes);
        let mut last = "input/images".to_owned();
        for (name, op, shape) in operations(n) {
            let name = format!("Net/{name}");
            let mut node = GraphNode::new(&name, op).input(&last).shape(shape);
            if let Some((layer, "convolution" | "linear")) = name.rsplit_once('/') {
                for (parameter, _) in parameters.iter().filter(|(parameter, _)| parameter.starts_with(layer)) {
                    node = node.input(parameter);
                }
            }
            nodes.push(node);
            last = name;
        }
        nodes.push(GraphNode::new("output/classes", "IO Node").input(last).shape([n, 10]));
        nodes
    }
}

impl Forward for Net {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.pool.forward(&F::relu(&self.conv1.forward(x)?)?)?;
        let x = self.pool.forward(&F::relu(&self.conv2.forward(&x)?)?)?;
        let x = x.reshape([-1, 16 * 4 * 4])?;
        let x = F::relu(&self.fc1.forward(&x)?)?;
        let x = F::relu(&self.fc2.forward(&x)?)?;
        self.fc3.forward(&x)
    }
}

/// Each operation of `forward`: its name, its kind, and the shape of its result for `n` pictures.
fn operations(n: usize) -> [(&'static str, &'static str, Vec<usize>); 13] {
    [
        ("conv1/convolution", "conv2d", vec![n, 6, 24, 24]),
        ("relu1", "relu", vec![n, 6, 24, 24]),
        ("pool1", "max_pool2d", vec![n, 6, 12, 12]),
        ("conv2/convolution", "conv2d", vec![n, 16, 8, 8]),
        ("relu2", "relu", vec![n, 16, 8, 8]),
        ("pool2", "max_pool2d", vec![n, 16, 4, 4]),
        ("view", "reshape", vec![n, 256]),
        ("fc1/linear", "linear", vec![n, 120]),
        ("relu3", "relu", vec![n, 120]),
        ("fc2/linear", "linear", vec![n, 84]),
        ("relu4", "relu", vec![n, 84]),
        ("fc3/linear", "linear", vec![n, 10]),
        ("log_softmax", "log_softmax", vec![n, 10]),
    ]
}
