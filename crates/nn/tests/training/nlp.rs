//! The losses of the first 100 steps of the three programs of `examples/nlp`, which follow "NLP from scratch". The
//! models are smaller, have no dropout, and start from PyTorch's weights; names and sentences come in PyTorch's
//! order. `../golden/nlp.py` trained the same models in PyTorch.

use pagelock_nn::optim::{Adam, Optimizer, Sgd, clip_grad_norm_};
use pagelock_nn::rnn::{PackedSequence, pack_sequence};
use pagelock_nn::{Embedding, Forward, GRU, Linear, Module, RNN, RNNOptions, functional as F, load_safetensors};
use pagelock_tensor::{Device, Int, Reduction, Result, Tensor};

use crate::{LOSS_BOUND, STEPS, devices, pytorch};

const BATCH: usize = 8;
const LETTERS: usize = 10;
const LANGUAGES: usize = 4;
const HIDDEN: usize = 12;
const WORDS: usize = 11;
const LENGTH: usize = 5;

/// The letter or word at position `place` of text `i` of a step.
fn text(step: usize, i: usize, place: usize, size: usize) -> i64 {
    ((step * 31 + i * 7 + place * 3 + step * i % 5) % size) as i64
}

fn name(step: usize, i: usize) -> Vec<i64> {
    (0..2 + (step + i) % 5).map(|place| text(step, i, place, LETTERS)).collect()
}

fn one_hots(numbers: &[i64], width: usize, device: &Device) -> Result<Tensor> {
    F::one_hot(&Tensor::from_slice(numbers, [numbers.len()])?.to(device)?, width)?.to_float()
}

/// A model that computes its loss on the data of a step.
trait Learns: Module {
    fn loss(&self, step: usize, device: &Device) -> Result<Tensor>;
}

#[derive(Module)]
struct Classifier {
    rnn: RNN,
    h2o: Linear,
}

impl Classifier {
    fn new() -> Result<Self> {
        Ok(Self { rnn: RNN::new(LETTERS, HIDDEN)?, h2o: Linear::new(HIDDEN, LANGUAGES)? })
    }
}

impl Learns for Classifier {
    fn loss(&self, step: usize, device: &Device) -> Result<Tensor> {
        let names = (0..BATCH).map(|i| one_hots(&name(step, i), LETTERS, device)).collect::<Result<Vec<_>>>()?;
        let names: PackedSequence = pack_sequence(&names.iter().collect::<Vec<_>>(), false)?;
        let (_, hidden) = self.rnn.forward_packed(&names, None)?;
        let target: Vec<i64> = (0..BATCH).map(|i| ((step + 3 * i) % LANGUAGES) as i64).collect();
        let target = Tensor::from_slice(&target, [BATCH])?.to(device)?;
        self.h2o.forward(&hidden.select(0, 0)?)?.log_softmax(1)?.nll_loss(&target, Reduction::Mean)
    }
}

#[derive(Module)]
struct NameGenerator {
    i2h: Linear,
    i2o: Linear,
    o2o: Linear,
}

impl NameGenerator {
    fn new() -> Result<Self> {
        let inputs = LANGUAGES + LETTERS + HIDDEN;
        let [i2h, i2o] = [HIDDEN, LETTERS].map(|outputs| Linear::new(inputs, outputs));
        Ok(Self { i2h: i2h?, i2o: i2o?, o2o: Linear::new(HIDDEN + LETTERS, LETTERS)? })
    }
}

impl Learns for NameGenerator {
    fn loss(&self, step: usize, device: &Device) -> Result<Tensor> {
        let letters = name(step, 0);
        let language = one_hots(&[(step % LANGUAGES) as i64], LANGUAGES, device)?;
        let mut hidden = Tensor::on(device).zeros([1, HIDDEN])?;
        let mut outputs = Vec::new();
        for letter in one_hots(&letters, LETTERS, device)?.split(1, 0)? {
            let x = Tensor::cat(&[&language, &letter, &hidden], 1)?;
            hidden = self.i2h.forward(&x)?.tanh()?;
            let output = Tensor::cat(&[&hidden, &self.i2o.forward(&x)?], 1)?;
            outputs.push(self.o2o.forward(&output)?.log_softmax(1)?);
        }
        let targets: Vec<i64> = letters[1..].iter().chain(&letters[..1]).copied().collect();
        let targets = Tensor::from_slice(&targets, [targets.len()])?.to(device)?;
        Tensor::cat(&outputs.iter().collect::<Vec<_>>(), 0)?.nll_loss(&targets, Reduction::Mean)
    }
}

#[derive(Module)]
struct Encoder {
    embedding: Embedding,
    gru: GRU,
}

#[derive(Module)]
struct Attention {
    w: Linear,
    u: Linear,
    v: Linear,
}

#[derive(Module)]
struct Decoder {
    embedding: Embedding,
    attention: Attention,
    gru: GRU,
    out: Linear,
}

#[derive(Module)]
struct Translator {
    encoder: Encoder,
    decoder: Decoder,
}

impl Translator {
    fn new() -> Result<Self> {
        let embedding = || Embedding::new(WORDS, HIDDEN);
        let gru = |inputs| GRU::with(inputs, HIDDEN, RNNOptions::new().batch_first(true));
        let linear = |outputs| Linear::new(HIDDEN, outputs);
        let attention = Attention { w: linear(HIDDEN)?, u: linear(HIDDEN)?, v: linear(1)? };
        let decoder = Decoder { embedding: embedding()?, attention, gru: gru(2 * HIDDEN)?, out: linear(WORDS)? };
        Ok(Self { encoder: Encoder { embedding: embedding()?, gru: gru(HIDDEN)? }, decoder })
    }
}

impl Learns for Translator {
    fn loss(&self, step: usize, device: &Device) -> Result<Tensor> {
        let words = |step: usize| -> Result<Tensor<Int>> {
            let places = (0..BATCH).flat_map(|i| (0..LENGTH).map(move |place| text(step, i, place, WORDS)));
            Tensor::from_vec(places.collect::<Vec<i64>>(), [BATCH, LENGTH])?.to(device)
        };
        let (source, target) = (words(step)?, words(step + 1)?);
        let Self { encoder, decoder } = self;
        let (encoded, mut hidden) = encoder.gru.forward(&encoder.embedding.forward(&source)?)?;
        let (padding, attention) = (source.eq_scalar(0)?, &decoder.attention);
        let mut word: Tensor<Int> = Tensor::on(device).full([BATCH, 1], 0)?;
        let mut outputs = Vec::new();
        for i in 0..LENGTH {
            let query = attention.w.forward(&hidden.transpose(0, 1)?)?;
            let scores = attention.v.forward(&query.add(&attention.u.forward(&encoded)?)?.tanh()?)?.squeeze(2)?;
            let weights = scores.masked_fill(&padding, f64::NEG_INFINITY)?.unsqueeze(1)?.softmax(-1)?;
            let x = Tensor::cat(&[&decoder.embedding.forward(&word)?, &weights.matmul(&encoded)?], 2)?;
            let output;
            (output, hidden) = decoder.gru.forward_with(&x, &hidden)?;
            outputs.push(decoder.out.forward(&output)?);
            word = target.narrow(1, i, 1)?;
        }
        let scores = Tensor::cat(&outputs.iter().collect::<Vec<_>>(), 1)?.log_softmax(2)?;
        scores.flatten(0, 1)?.nll_loss(&target.flatten(0, 1)?, Reduction::Mean)
    }
}

fn losses_agree(kind: &str, model: &dyn Fn() -> Result<Box<dyn Learns>>) {
    let golden = load_safetensors(pytorch::path("nlp.safetensors")).unwrap();
    let expected: Vec<f32> = golden.get(&format!("{kind}.losses")).unwrap().to_vec().unwrap();
    assert_eq!(expected.len(), STEPS);
    for device in devices() {
        let mut model = model().unwrap();
        model.load_state_dict(&pytorch::under(&golden, &format!("{kind}.weights."))).unwrap();
        model.to_(&device).unwrap();
        let mut opt: Box<dyn Optimizer> = match kind {
            "classify" => Box::new(Sgd::new(model.parameters(), 0.15)),
            _ => Box::new(Adam::new(model.parameters(), 4e-3)),
        };
        let mut differences = Vec::new();
        for (step, expected) in expected.iter().enumerate() {
            let loss = model.loss(step, &device).unwrap();
            loss.backward().unwrap();
            if kind == "classify" {
                clip_grad_norm_(model.parameters(), 3.0).unwrap();
            }
            opt.step().unwrap();
            opt.zero_grad();
            differences.push(f64::from((loss.item::<f32>().unwrap() - expected).abs()));
        }
        let worst = pytorch::largest(differences);
        println!("{kind} on {device}: losses at most {worst:.1e} from PyTorch's");
        assert!(worst <= LOSS_BOUND, "{kind} on {device}: {worst}");
    }
}

#[test]
fn the_classifier_of_names_learns_as_in_pytorch() {
    losses_agree("classify", &|| Ok(Box::new(Classifier::new()?)));
}

#[test]
fn the_generator_of_names_learns_as_in_pytorch() {
    losses_agree("generate", &|| Ok(Box::new(NameGenerator::new()?)));
}

#[test]
fn the_translator_learns_as_in_pytorch() {
    losses_agree("translate", &|| Ok(Box::new(Translator::new()?)));
}
