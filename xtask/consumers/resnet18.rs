//! A ResNet-18 that trains on digits for two epochs: torchvision's layers and names, for small pictures.
use pagelock::nn::functional as F;
use pagelock::nn::save_safetensors;
use pagelock::prelude::*;
use pagelock::tensor::Result;

/// Two convolutions with a residual connection.
#[derive(Module)]
struct BasicBlock {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    downsample: Option<Sequential>,
}

fn conv(from: usize, to: usize, kernel: usize, stride: usize) -> Result<Conv2d> {
    Ok(Conv2d::new(from, to, kernel)?.stride(stride).padding(kernel / 2).without_bias())
}

impl BasicBlock {
    fn new(from: usize, to: usize, stride: usize) -> Result<Self> {
        let downsample = match stride != 1 || from != to {
            true => Some(Sequential::new((conv(from, to, 1, stride)?, BatchNorm2d::new(to)?))),
            false => None,
        };
        Ok(Self {
            conv1: conv(from, to, 3, stride)?,
            bn1: BatchNorm2d::new(to)?,
            conv2: conv(to, to, 3, 1)?,
            bn2: BatchNorm2d::new(to)?,
            downsample,
        })
    }
}

impl Forward for BasicBlock {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.bn1.forward_relu(&self.conv1.forward(x)?)?;
        let y = self.bn2.forward(&self.conv2.forward(&y)?)?;
        match &self.downsample {
            Some(downsample) => (y + downsample.forward(x)?)?.relu(),
            None => (y + x)?.relu(),
        }
    }
}

#[derive(Module)]
struct ResNet {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    layer1: [BasicBlock; 2],
    layer2: [BasicBlock; 2],
    layer3: [BasicBlock; 2],
    layer4: [BasicBlock; 2],
    avgpool: AdaptiveAvgPool2d,
    fc: Linear,
}

impl ResNet {
    /// `width` is the number of channels of the first layer; the published model has 64.
    fn new(channels: usize, width: usize, classes: usize) -> Result<Self> {
        let layer = |from: usize, to: usize, stride: usize| -> Result<[BasicBlock; 2]> {
            Ok([BasicBlock::new(from, to, stride)?, BasicBlock::new(to, to, 1)?])
        };
        Ok(Self {
            conv1: conv(channels, width, 3, 1)?,
            bn1: BatchNorm2d::new(width)?,
            layer1: layer(width, width, 1)?,
            layer2: layer(width, 2 * width, 2)?,
            layer3: layer(2 * width, 4 * width, 2)?,
            layer4: layer(4 * width, 8 * width, 2)?,
            avgpool: AdaptiveAvgPool2d::new(1),
            fc: Linear::new(8 * width, classes)?,
        })
    }
}

impl Forward for ResNet {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = self.bn1.forward_relu(&self.conv1.forward(x)?)?;
        for block in [&self.layer1, &self.layer2, &self.layer3, &self.layer4].into_iter().flatten() {
            x = block.forward(&x)?;
        }
        self.fc.forward(&self.avgpool.forward(&x)?.flatten(1, -1)?)
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    manual_seed(0);
    let device = Device::best();
    let digits = SyntheticDigits::new(0).train_len(160).test_len(64).generate()?;
    let as_images = |(x, y): (Tensor, Tensor<Int>)| Ok((x.reshape([-1, 1, 28, 28])?, y));
    let train_ds = TensorDataset::new((digits.train.flat()?, digits.train.labels()?))?;
    let valid_ds = TensorDataset::new((digits.test.flat()?, digits.test.labels()?))?;
    let train_dl = DataLoader::new(train_ds).batch_size(16).shuffle(0).num_workers(1).map(as_images).to(&device)?;
    let valid_dl = DataLoader::new(valid_ds).batch_size(32).map(as_images).to(&device)?;

    let model = ResNet::new(1, 8, 10)?.to(&device)?;
    println!("{model}\n{} parameters on {device}", model.num_parameters());
    let mut opt = Sgd::new(model.parameters(), 0.1).momentum(0.9).weight_decay(5e-4);
    for epoch in 0..2 {
        model.train();
        for batch in &train_dl {
            let (xb, yb) = batch?;
            let loss = autocast(Half::BF16, || F::cross_entropy(&model.forward(&xb)?, &yb))?;
            loss.backward()?;
            opt.step()?;
            opt.zero_grad();
        }
        model.eval();
        let mut n_right = 0.0;
        for batch in &valid_dl {
            let (xb, yb) = batch?;
            n_right += no_grad(|| model.forward(&xb)?.argmax(1)?.eq(&yb)?.to_float()?.sum(..)?.item::<f64>())?;
        }
        println!("epoch {epoch}: {n_right} of {} right", valid_dl.n_samples());
    }
    save_safetensors(&model.state_dict(), "resnet18.safetensors")?;
    Ok(())
}
