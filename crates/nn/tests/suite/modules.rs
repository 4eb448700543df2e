//! What a module is made of: names, modes, gradients, state dicts.

use crate::{cnn, pytorch};
use pagelock_nn::{
    Buffer, Conv2d, Dropout, Error, Forward, Layer, Linear, Mode, Module, Parameter, ReLU, Sequential, StateDict,
    TransformerEncoder, TransformerEncoderLayer,
};
use pagelock_tensor::{DType, Error as TensorError, Generator, Result, Tensor};

fn names(module: &impl Module) -> Vec<String> {
    module.named_parameters().into_iter().map(|(name, _)| name).collect()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec().unwrap()
}

fn ones(len: usize) -> Parameter {
    Parameter::new(Tensor::ones(len).unwrap())
}

#[derive(Module)]
struct Net {
    conv1: Conv2d,
    layers: Vec<Box<dyn Layer>>,
    scale: Parameter,
    #[module(skip)]
    _label: &'static str,
}

fn net() -> Net {
    let layers: Vec<Box<dyn Layer>> =
        vec![Box::new(Linear::new(3, 4).unwrap()), Box::new(Linear::new(3, 4).unwrap()), Box::new(ReLU)];
    Net { conv1: Conv2d::new(1, 16, 3).unwrap(), layers, scale: ones(3), _label: "net" }
}

#[test]
fn names_and_shapes_of_state_dicts_are_those_of_pytorch() {
    let golden = pytorch::json("models.json");
    let dicts = [
        ("cnn", cnn().unwrap().state_dict()),
        ("logistic", Linear::new(784, 10).unwrap().state_dict()),
        ("net", net().state_dict()),
    ];
    for (model, dict) in dicts {
        let theirs = golden[model]["state_dict"].as_object().unwrap();
        let mut ours: Vec<&str> = dict.names().collect();
        ours.sort_unstable();
        let mut expected: Vec<&str> = theirs.keys().map(String::as_str).collect();
        expected.sort_unstable();
        assert_eq!(ours, expected, "{model}");
        for (name, shape) in theirs {
            assert_eq!(serde_json::json!(dict.get(name).unwrap().dims()), *shape, "{model} {name}");
        }
    }
}

#[test]
fn a_sequential_gives_what_its_layers_give_one_after_the_other() {
    let model = cnn().unwrap();
    let x = Tensor::randn([5, 1, 28, 28]).unwrap();
    let gradients = |y: Tensor| {
        y.pow(2.0).unwrap().sum(..).unwrap().backward().unwrap();
        let grads: Vec<Vec<f32>> = model.parameters().iter().map(|p| p.grad().unwrap().to_vec().unwrap()).collect();
        model.zero_grad();
        (y.to_vec::<f32>().unwrap(), grads.concat())
    };

    let (together, grads_together) = gradients(model.forward(&x).unwrap());
    let (apart, grads_apart) = gradients(model.iter().try_fold(x.clone(), |x, layer| layer.forward(&x)).unwrap());

    assert_eq!(together, apart);
    assert_eq!(grads_together, grads_apart);
}

#[test]
fn printing_a_struct_shows_what_pytorch_shows() {
    assert_eq!(net().to_string(), pytorch::json("models.json")["net"]["print"].as_str().unwrap());
}

#[test]
fn fields_are_visited_under_their_names_in_order() {
    #[derive(Module)]
    struct Parts {
        #[module(rename = "fc")]
        linear: Linear,
        r#type: Parameter,
        absent: Option<Linear>,
        present: Option<Parameter>,
        pair: (Parameter, Linear),
        array: [Parameter; 2],
        boxed: Box<dyn Module>,
    }
    let parts = Parts {
        linear: Linear::new(2, 2).unwrap().without_bias(),
        r#type: ones(1),
        absent: None,
        present: Some(ones(1)),
        pair: (ones(1), Linear::new(2, 2).unwrap()),
        array: [ones(1), ones(2)],
        boxed: Box::new(Linear::new(1, 1).unwrap()),
    };
    let expected = [
        "fc.weight",
        "type",
        "present",
        "pair.0",
        "pair.1.weight",
        "pair.1.bias",
        "array.0",
        "array.1",
        "boxed.weight",
        "boxed.bias",
    ];
    assert_eq!(names(&parts), expected);
}

#[test]
fn tuple_structs_and_unit_structs_are_modules() {
    #[derive(Module)]
    struct Pair(
        Linear,
        #[module(skip)]
        #[allow(dead_code)]
        u8,
        ReLU,
    );
    #[derive(Module)]
    struct Nothing;

    assert_eq!(names(&Pair(Linear::new(1, 1).unwrap(), 0, ReLU)), ["0.weight", "0.bias"]);
    assert_eq!(Nothing.num_parameters(), 0);
    assert_eq!(Nothing.to_string(), "Nothing()");
}

#[test]
fn generic_structs_are_modules_of_any_precision() {
    #[derive(Module)]
    struct Residual<M> {
        inner: M,
        gate: Parameter,
    }
    impl<M: Forward> Forward for Residual<M> {
        fn forward(&self, x: &Tensor) -> Result<Tensor> {
            (self.inner.forward(x)? * &self.gate)? + x
        }
    }

    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let inner = Linear::new_with(3, 3, &Generator::new(1)).unwrap().to_dtype(dtype).unwrap();
        let model = Residual { inner, gate: Parameter::new(Tensor::of(dtype).zeros(3).unwrap()) };
        let x = Tensor::of(dtype).new([[1.0, 2.0, 3.0]]).unwrap();
        assert_eq!(names(&model), ["inner.weight", "inner.bias", "gate"]);
        let y = model.forward(&x).unwrap();
        assert_eq!((y.dtype(), y.to_vec::<f64>().unwrap()), (dtype, vec![1.0, 2.0, 3.0]));
    }
}

#[test]
fn a_struct_may_have_parameters_of_another_precision_and_no_display() {
    #[derive(Module)]
    #[module(no_display)]
    struct Wide {
        weight: Parameter,
    }
    let wide = Wide { weight: Parameter::new(Tensor::of(DType::F64).zeros(1).unwrap()) };
    assert_eq!(names(&wide), ["weight"]);
    assert_eq!(wide.parameters()[0].dtype(), DType::F64);
}

#[test]
fn a_parameter_in_two_places_counts_once_and_is_saved_twice() {
    let tied = ones(4);
    let model = (tied.clone(), tied);
    assert_eq!(names(&model), ["0"]);
    assert_eq!(model.num_parameters(), 4);
    assert_eq!(model.state_dict().names().collect::<Vec<_>>(), ["0", "1"]);
}

#[test]
fn train_and_eval_reach_every_layer_with_a_mode() {
    #[derive(Module)]
    struct Deep {
        inner: Vec<Sequential>,
        mode: Mode,
    }
    let model = Deep { inner: vec![Sequential::new((Dropout::new(0.5), ReLU))], mode: Mode::default() };
    let x = Tensor::ones([4, 8]).unwrap();
    assert!(model.is_training());

    model.eval();
    assert!(!model.is_training() && !model.mode.is_training());
    assert_eq!(values(&model.inner[0].forward(&x).unwrap()), values(&x));

    model.train();
    assert!(model.is_training());
    assert_ne!(values(&model.inner[0].forward(&x).unwrap()), values(&x));
}

#[test]
fn zero_grad_forgets_every_gradient() {
    let model = Linear::new(3, 2).unwrap();
    model.forward(&Tensor::ones([1, 3]).unwrap()).unwrap().sum(..).unwrap().backward().unwrap();
    assert!(model.parameters().iter().all(|parameter| parameter.grad().is_some()));
    model.zero_grad();
    assert!(model.parameters().iter().all(|parameter| parameter.grad().is_none()));
}

#[test]
fn a_state_dict_carries_parameters_and_buffers_to_another_model() {
    #[derive(Module)]
    struct Normalized {
        linear: Linear,
        mean: Buffer,
    }
    let make =
        |mean| Normalized { linear: Linear::new(3, 2).unwrap(), mean: Buffer::new(Tensor::full(3, mean).unwrap()) };
    let (from, to) = (make(5.0), make(0.0));

    to.load_state_dict(&from.state_dict()).unwrap();

    assert_eq!(values(&to.linear.weight), values(&from.linear.weight));
    assert_eq!(values(&to.mean), [5.0; 3]);
    assert!(to.linear.weight.requires_grad());
    assert_eq!(to.buffers().len(), 1);
}

#[test]
fn a_state_dict_that_does_not_fit_names_every_difference_and_loads_nothing() {
    let model = Linear::new(3, 2).unwrap();
    let before = values(&model.weight);
    let mut dict = StateDict::new();
    dict.insert("weight", Tensor::zeros([2, 4]).unwrap());
    dict.insert("gamma", Tensor::zeros(1).unwrap());

    let error = model.load_state_dict(&dict).unwrap_err();

    assert_eq!(
        error.to_string(),
        "the state dict does not fit the model, and nothing was loaded: \
         it lacks `bias`; the model has no `gamma`; `weight` is [2, 4], and [2, 3] in the model"
    );
    let Error::StateDict(misfit) = error else { panic!("{error:?}") };
    assert_eq!(misfit.missing, ["bias"]);
    assert_eq!(values(&model.weight), before);
}

#[test]
fn a_state_dict_with_another_prefix_says_how_to_rename_it() {
    let model = Linear::new(3, 2).unwrap();
    let parallel = model.state_dict().renamed(|name| Some(format!("module.{name}")));
    assert_eq!(
        model.load_state_dict(&parallel).unwrap_err().to_string(),
        "the state dict does not fit the model, and nothing was loaded: \
         it lacks `weight`, `bias`; the model has no `module.weight`, `module.bias`; to load what begins with `module.`, \
         use `dict.renamed(|name| name.strip_prefix(\"module.\").map(str::to_owned))`"
    );
    let error = Sequential::new((Linear::new(3, 2).unwrap(),)).load_state_dict(&model.state_dict()).unwrap_err();
    let fix = "; to load it into `0.`, use `dict.renamed(|name| Some(format!(\"0.{name}\")))`";
    assert!(error.to_string().ends_with(fix), "{error}");
}

#[test]
fn a_parameter_made_of_a_computed_tensor_is_a_leaf() {
    let w = Tensor::ones(2).unwrap().set_requires_grad(true);
    let parameter = Parameter::new((&w * 2.0).unwrap());
    assert!(parameter.is_leaf() && parameter.requires_grad());
    assert_eq!(values(&parameter), [2.0, 2.0]);
}

#[test]
fn parameters_stand_on_either_side_of_operators() {
    let (x, w) = (Tensor::new([6.0, 8.0]).unwrap(), Parameter::new(Tensor::new([2.0, 4.0]).unwrap()));
    let numbers = |result: Result<Tensor>| values(&result.unwrap());
    assert_eq!(numbers(&x + &w), [8.0, 12.0]);
    assert_eq!(numbers(x.neg() - &w), [-8.0, -12.0]);
    assert_eq!(numbers(x.neg().unwrap() * &w), [-12.0, -32.0]);
    assert_eq!(numbers(&w / &x), [2.0 / 6.0, 0.5]);
    assert_eq!(numbers(&w * &w), [4.0, 16.0]);
}

#[test]
fn layers_refuse_what_does_not_fit_with_the_numbers() {
    let linear = Linear::new(784, 10).unwrap().forward(&Tensor::zeros([64, 28]).unwrap()).err().unwrap();
    assert_eq!(
        linear.to_string(),
        "linear: the input is [64, 28], but its last size must be 784, that of the weight [10, 784]; flatten or reshape it"
    );
    let grouped = Conv2d::grouped(3, 4, 3, 2).unwrap_err();
    assert_eq!(grouped.to_string(), "Conv2d: groups is 2, but it must be a divisor of 3 input and 4 output channels");
    let dropout = Dropout::new(1.5).forward(&Tensor::ones(3).unwrap()).err().unwrap();
    assert_eq!(dropout.to_string(), "dropout: p is 1.5, but it must be a probability, 0 to 1");
}

#[test]
fn errors_in_a_sequential_name_the_layer() {
    let inner = Sequential::new((ReLU, Linear::new(5, 3).unwrap()));
    let model = Sequential::new((Linear::new(8, 4).unwrap(), ReLU, inner));

    let error = model.forward(&Tensor::zeros([2, 8]).unwrap()).err().unwrap();

    assert_eq!(
        error.to_string(),
        "layer `2.1` (Linear): linear: the input is [2, 4], but its last size must be 5, that of the weight [3, 5]; flatten or \
         reshape it"
    );
    let encoder = TransformerEncoder::new(2, || TransformerEncoderLayer::new(8, 2, 16)).unwrap();
    let error = encoder.forward(&Tensor::zeros([2, 5, 7]).unwrap()).err().unwrap();
    assert!(
        matches!(&error, TensorError::Argument(text) if text.starts_with("layer `layers.0` (TransformerEncoderLayer): "))
    );
}

#[test]
fn an_empty_batch_goes_through_the_model() {
    let scores = cnn().unwrap().forward(&Tensor::zeros([0, 1, 28, 28]).unwrap()).unwrap();
    assert_eq!(scores.dims(), [0, 10]);
}
