//! Files of PyTorch, read and written. `tests/golden/torch_files.py` made the files of `golden/torch_files`. If
//! `PAGELOCK_PYTHON` names a Python that has torch, it also checks the files that are written here.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};

use pagelock_nn::optim::{Adagrad, Adam, AdamW, Optimizer, RmsProp, Sgd};
use pagelock_nn::{
    BatchNorm1d, Forward, Linear, Module, Parameter, ReLU, Sequential, TorchValue, load_torch, save_safetensors,
    save_torch,
};
use pagelock_tensor::{AnyTensor, DType, Int, Tensor, no_grad};
use serde_json::{Value, json};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::pytorch;

fn golden() -> PathBuf {
    pytorch::path("torch_files")
}

fn names() -> Vec<String> {
    let files = fs::read_dir(golden()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = files.filter_map(|name| Some(name.strip_suffix(".pt")?.to_owned())).collect();
    names.sort();
    assert!(names.len() > 25, "{names:?}");
    names
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The same description as the script's `describe`; storages are numbered in the order in which they first occur.
pub(crate) fn describe(value: &TorchValue, storages: &mut BTreeMap<usize, usize>) -> Value {
    let all = |items: &[TorchValue], storages: &mut _| -> Vec<Value> {
        items.iter().map(|item| describe(item, storages)).collect()
    };
    match value {
        TorchValue::None => Value::Null,
        TorchValue::Bool(flag) => json!(flag),
        TorchValue::Int(number) => json!(number),
        TorchValue::Float(number) => json!({"float": hex(&number.to_be_bytes())}),
        TorchValue::Text(text) => json!(text),
        TorchValue::Bytes(bytes) => json!({"bytes": hex(bytes)}),
        TorchValue::DType(name) => json!({"dtype": name}),
        TorchValue::List(items) => json!({"list": all(items, storages)}),
        TorchValue::Tuple(items) => json!({"tuple": all(items, storages)}),
        TorchValue::Dict(entries) => {
            let pairs = entries.iter().map(|(key, value)| json!([describe(key, storages), describe(value, storages)]));
            json!({"dict": pairs.collect::<Vec<_>>()})
        }
        TorchValue::Tensor(tensor) => {
            let next = storages.len();
            let shared = *storages.entry(tensor.storage_id()).or_insert(next);
            let mut bytes = Vec::new();
            tensor.write_elements(&mut bytes).unwrap().unwrap();
            json!({"tensor": tensor.dtype().name(), "shape": tensor.dims(), "hex": hex(&bytes), "shared": shared})
        }
        other => panic!("{other:?}"),
    }
}

fn described(path: &Path) -> Value {
    describe(&TorchValue::load(path).unwrap(), &mut BTreeMap::new())
}

fn wanted(name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(golden().join(format!("{name}.json"))).unwrap()).unwrap()
}

fn script(command: &str, folder: &Path) -> bool {
    pytorch::script("torch_files.py", command, folder)
}

#[test]
fn files_of_pytorch_are_read_bit_for_bit_with_shared_storages() {
    for name in names() {
        assert_eq!(described(&golden().join(format!("{name}.pt"))), wanted(&name), "{name}");
    }
}

#[test]
fn what_was_read_is_written_and_read_bit_for_bit_here_and_by_pytorch() {
    let folder = tempfile::tempdir().unwrap();
    for name in names() {
        let path = folder.path().join(format!("{name}.pt"));
        TorchValue::load(golden().join(format!("{name}.pt"))).unwrap().save(&path).unwrap();
        assert_eq!(described(&path), wanted(&name), "{name}");
        // PyTorch reads the device of a rewritten file as text and an expanded tensor as it was, so the descriptions
        // are equal.
        fs::copy(golden().join(format!("{name}.json")), path.with_extension("json")).unwrap();
    }
    script("check", folder.path());
}

fn trained<O: Optimizer>(model: &impl Forward, opt: &mut O) -> Vec<f64> {
    let x: Vec<f32> = (0..24).map(|i| i as f32 / 12.0 - 1.0).collect();
    let x = Tensor::from_slice(&x, [8, 3]).unwrap();
    let y = x.sum_keepdim(1).unwrap().to_vec::<f32>().unwrap().into_iter().map(f32::sin).collect::<Vec<_>>();
    let y = Tensor::from_slice(&y, [8, 1]).unwrap();
    let step = |_| {
        let loss = (model.forward(&x).unwrap() - &y).unwrap().pow(2.0).unwrap().mean(..).unwrap();
        opt.zero_grad();
        loss.backward().unwrap();
        opt.step().unwrap();
        loss.item::<f64>().unwrap()
    };
    (0..3).map(step).collect()
}

fn goes_on<O: Optimizer>(folder: &Path, name: &str, make: impl FnOnce(Vec<Parameter>) -> O) {
    let checkpoint = TorchValue::load(folder.join(format!("{name}.pt"))).unwrap();
    let model = Sequential::new((Linear::new(3, 4).unwrap(), ReLU, Linear::new(4, 1).unwrap()));
    model.load_state_dict(&checkpoint.at("model").unwrap().to_state_dict().unwrap()).unwrap();
    let mut opt = make(model.parameters());
    opt.load_state_dict(&checkpoint.at("optimizer").unwrap().to_optimizer_state().unwrap()).unwrap();
    let losses = trained(&model, &mut opt);
    let wanted: Value =
        serde_json::from_str(&fs::read_to_string(folder.join(format!("{name}.losses"))).unwrap()).unwrap();
    let wanted = wanted[0].as_array().unwrap();
    assert_eq!(losses.len(), wanted.len(), "{name}");
    for (found, wanted) in losses.iter().zip(wanted) {
        assert!((found - wanted.as_f64().unwrap()).abs() < 1e-6, "{name}: {losses:?}, {wanted}");
    }
    let entries = [
        ("model", model.state_dict().to_torch().unwrap()),
        ("optimizer", opt.state_dict().unwrap().to_torch().unwrap()),
    ];
    TorchValue::dict(entries).save(folder.join(format!("{name}.rust.pt"))).unwrap();
}

#[test]
fn training_goes_on_here_and_there_from_the_optimizers_state() {
    let folder = tempfile::tempdir().unwrap();
    if !script("train", folder.path()) {
        return;
    }
    goes_on(folder.path(), "sgd", |parameters| Sgd::new(parameters, 0.3));
    goes_on(folder.path(), "adam", |parameters| Adam::new(parameters, 0.3));
    goes_on(folder.path(), "adamw", |parameters| AdamW::new(parameters, 0.3));
    goes_on(folder.path(), "rmsprop", |parameters| RmsProp::new(parameters, 0.3));
    goes_on(folder.path(), "adagrad", |parameters| Adagrad::new(parameters, 0.3));
    script("continue", folder.path());
}

#[test]
fn a_checkpoint_has_its_state_dict_under_a_usual_name() {
    let dict = load_torch(golden().join("checkpoint.pt")).unwrap();
    assert_eq!(dict.names().collect::<Vec<_>>(), ["weight", "bias"]);
    let error = load_torch(golden().join("adam.pt")).unwrap_err().to_string();
    assert!(error.contains("it has `state` (a dict), `param_groups` (a list)"), "{error}");
}

#[test]
fn tied_tensors_are_one_and_change_as_one() {
    let dict = load_torch(golden().join("tied.pt")).unwrap();
    let (embedding, head) = (dict.get("embedding.weight").unwrap(), dict.get("head.weight").unwrap());
    no_grad(|| embedding.zero_()).unwrap();
    assert_eq!(head.to_vec::<f32>().unwrap(), [0.0; 15]);
}

#[test]
fn only_the_viewed_part_of_a_large_storage_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("part.pt");
    let large = Tensor::zeros([100_000]).unwrap();
    let dict = [("a".to_owned(), large.narrow(0, 50_000, 3).unwrap())].into_iter().collect();
    save_torch(&dict, &path).unwrap();
    assert!(fs::metadata(&path).unwrap().len() < 4_000);
    assert_eq!(load_torch(&path).unwrap().get("a").unwrap().to_vec::<f32>().unwrap(), [0.0; 3]);
}

#[test]
fn elements_of_the_other_byte_order_are_turned() {
    let elements = [1.5_f32.to_be_bytes(), (-2.0_f32).to_be_bytes()].concat();
    let path = archive(&tensor_pickle(2, &[2], &[1], 0), &[("byteorder", b"big"), ("data/0", &elements)]);
    let value = TorchValue::load(path.path()).unwrap();
    assert_eq!(value.as_tensor().unwrap().float().unwrap().to_vec::<f32>().unwrap(), [1.5, -2.0]);
}

#[test]
fn loading_partly_says_what_is_missing_and_unexpected() {
    let norm = BatchNorm1d::new(3).unwrap();
    let mut dict = norm.state_dict();
    dict.remove("bias");
    dict.insert("other", Tensor::ones([1]).unwrap());
    dict.insert("weight", Tensor::of(DType::F64).full([3], 4.0).unwrap());
    let misfit = norm.load_state_dict_partly(&dict).unwrap();
    assert_eq!((misfit.missing, misfit.unexpected), (vec!["bias".to_owned()], vec!["other".to_owned()]));
    assert_eq!(norm.state_dict().get("weight").unwrap().to_vec::<f32>().unwrap(), [4.0; 3]);

    dict.insert("weight", Tensor::ones([2]).unwrap());
    let error = norm.load_state_dict_partly(&dict).unwrap_err().to_string();
    assert!(error.contains("`weight` is [2], and [3] in the model"), "{error}");
}

/// An archive with this pickle and these members.
fn archive(pickle: &[u8], members: &[(&str, &[u8])]) -> tempfile::NamedTempFile {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, content) in [("data.pkl", pickle)].iter().chain(members) {
        archive.start_file(format!("a/{name}"), options).unwrap();
        archive.write_all(content).unwrap();
    }
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&archive.finish().unwrap().into_inner()).unwrap();
    file
}

/// A pickle of a tensor that claims to view a storage of `len` elements.
fn tensor_pickle(len: i32, shape: &[i32], strides: &[i32], offset: i32) -> Vec<u8> {
    let int = |number: i32| [&b"J"[..], &number.to_le_bytes()].concat();
    let text = |text: &str| [&b"X"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
    let tuple = |numbers: &[i32]| {
        [b"(", &numbers.iter().flat_map(|&number| int(number)).collect::<Vec<_>>()[..], b"t"].concat()
    };
    [
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((".to_vec(),
        text("storage"),
        b"ctorch\nFloatStorage\n".to_vec(),
        [text("0"), text("cpu"), int(len), b"tQ".to_vec(), int(offset)].concat(),
        tuple(shape),
        tuple(strides),
        b"\x89ccollections\nOrderedDict\n)RtR.".to_vec(),
    ]
    .concat()
}

fn refusal(pickle: &[u8]) -> String {
    TorchValue::load(archive(pickle, &[("data/0", &[0; 16])]).path()).unwrap_err().to_string()
}

#[test]
fn a_pickle_that_names_a_function_is_refused_by_name() {
    for (module, name) in [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
        ("__builtin__", "exec"),
        ("torch.nn.modules.linear", "Linear"),
        ("torch", "load"),
        ("torch._utils", "_import_dotted_name"),
        ("numpy.core.multiarray", "_reconstruct"),
    ] {
        let error = refusal(format!("c{module}\n{name}\n(X\u{4}\0\0\0truetR.").as_bytes());
        assert!(error.contains(&format!("its pickle names `{module}.{name}`")), "{error}");
        assert!(error.contains("nothing was called"), "{error}");
    }
}

#[test]
fn claims_are_checked_against_the_storage() {
    for (pickle, problem) in [
        (tensor_pickle(4, &[5], &[1], 0), "ends at element 4, but the storage has 4"),
        (tensor_pickle(4, &[2], &[1], 3), "ends at element 4, but the storage has 4"),
        (tensor_pickle(4, &[2], &[i32::MAX], 3), "but the storage has 4"),
        (tensor_pickle(4, &[-1], &[1], 0), "a size is -1"),
        (tensor_pickle(4, &[1], &[1], -1), "a size is -1"),
        (tensor_pickle(5, &[1], &[1], 0), "5 elements of float32 has 16 bytes"),
        (tensor_pickle(4, &[2, 2], &[1, 1], 0), "names an element twice"),
        (tensor_pickle(4, &[1; 9], &[1; 9], 0), "9 dimensions"),
        (tensor_pickle(4, &[2], &[], 0), "1 sizes and 0 strides"),
    ] {
        let error = refusal(&pickle);
        assert!(error.contains(problem), "{error} does not say: {problem}");
    }
    assert!(TorchValue::load(archive(&tensor_pickle(4, &[2, 2], &[1, 2], 0), &[("data/0", &[0; 16])]).path()).is_ok());
}

#[test]
fn bombs_are_refused() {
    let deep = [vec![b']'; 300], vec![b'a'; 299], vec![b'.']].concat();
    assert!(refusal(&deep).contains("nested more than 100 deep"));
    let holds_itself = b"]q\x00h\x00a.";
    assert!(!refusal(holds_itself).is_empty());
    let mut doubled = b"]".to_vec(); // 2^60 lists
    for number in 0..60 {
        doubled.extend([b'q', number, b']', b'h', number, b'a', b'h', number, b'a']);
    }
    doubled.push(b'.');
    assert!(refusal(&doubled).contains("values are shared too often"), "{}", refusal(&doubled));
    let mut copied = [&b"]("[..], &b"K\x01".repeat(10_000), b"e\x85q\x00ctorch\nSize\nq\x01"].concat();
    copied.extend(b"h\x01h\x00R".repeat(10_000));
    copied.push(b'.');
    assert!(refusal(&copied).contains("copies shared values too often"));
    assert!(refusal(b"X\xff\xff\xff\xff.").contains("a string of 4294967295 bytes extends beyond"));
    assert!(refusal(&[&[0x8a, 255][..], &[1; 255], b"."].concat()).contains("more than 64 bits"));
    assert!(refusal(b"}(K\x01u.").contains("not a list or dict"));
    assert!(refusal(b"h\x05.").contains("reads memo 5"));
    assert!(refusal(b"I1\n.").contains("instruction 0x49"));
}

/// The instruction for a text.
fn text_instruction(text: &str) -> Vec<u8> {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

#[test]
fn a_long_storage_key_of_bytes_is_not_copied_for_each_use() {
    let pickle = [
        b"c_codecs\nencode\n(".to_vec(),
        text_instruction(&"k".repeat(100_000)),
        [text_instruction("latin1"), b"tRq\x01(".to_vec()].concat(),
        [text_instruction("storage"), b"ctorch\nFloatStorage\nh\x01".to_vec()].concat(),
        [text_instruction("cpu"), b"K\x04tq\x00Q".to_vec()].concat(),
        b"h\x00Q".repeat(1_000),
        b".".to_vec(),
    ];
    let error = refusal(&pickle.concat());
    assert!(error.contains("copies shared values too often"), "{error:.200}");
}

#[test]
fn long_texts_and_bytes_are_saved_and_loaded() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (text, bytes) = ("x".repeat(200_000), vec![0xE9; 200_000]);
    let both = [("text", TorchValue::Text(text.clone())), ("bytes", TorchValue::Bytes(bytes.clone()))];
    for value in [TorchValue::Text(text.clone()), TorchValue::dict(both)] {
        value.save(file.path()).unwrap();
        let loaded = TorchValue::load(file.path()).unwrap();
        assert_eq!(describe(&loaded, &mut BTreeMap::new()), describe(&value, &mut BTreeMap::new()));
    }
}

#[test]
fn a_long_text_that_is_shared_often_is_refused() {
    let text = text_instruction(&"x".repeat(200_000));
    let list = |n: usize| [b"](", &text[..], b"q\x00", &b"h\x00".repeat(n - 1), b"e."].concat();
    assert!(TorchValue::load(archive(&list(4), &[]).path()).is_ok());
    assert!(refusal(&list(100)).contains("values are shared too often"));
}

/// The archive with `len_bytes` as the length of the member `name` in its directory, in the fields of Zip64.
fn with_zip64_size(mut archive: Vec<u8>, name: &[u8], len_bytes: u64) -> Vec<u8> {
    let last = |bytes: &[u8]| archive.windows(bytes.len()).rposition(|window| window == bytes).unwrap();
    let (name_at, directory_end) = (last(name), last(b"PK\x05\x06")); // the directory is behind the members
    let entry = name_at - 46;
    let directory_len = u32::from_le_bytes(archive[directory_end + 12..][..4].try_into().unwrap()) + 20;
    archive[directory_end + 12..][..4].copy_from_slice(&directory_len.to_le_bytes());
    archive[entry + 20..][..8].fill(0xFF); // both sizes are in the field that follows the name
    archive[entry + 30..][..2].copy_from_slice(&20_u16.to_le_bytes());
    let field = [&[1, 0, 16, 0][..], &len_bytes.to_le_bytes(), &len_bytes.to_le_bytes()].concat();
    let end = name_at + name.len();
    archive.splice(end..end, field);
    archive
}

#[test]
fn storages_of_more_bytes_than_a_u64_can_count_are_refused() {
    let int = |number: i64| [&b"\x8a\x08"[..], &number.to_le_bytes()].concat();
    let tensor = |key: &str, len: i64| {
        [
            b"ctorch._utils\n_rebuild_tensor_v2\n((".to_vec(),
            [text_instruction("storage"), b"ctorch\nDoubleStorage\n".to_vec()].concat(),
            [text_instruction(key), text_instruction("cpu"), int(len), b"tQK\x00))".to_vec()].concat(),
            b"\x89ccollections\nOrderedDict\n)RtR".to_vec(),
        ]
        .concat()
    };
    let pickle = [&b"]("[..], &tensor("1", 512), &tensor("0", (1 << 61) - 256), b"e."].concat();
    let archive = archive(&pickle, &[("data/0", &[0; 16]), ("data/1", &[0; 4_096])]);
    let bytes = with_zip64_size(fs::read(archive.path()).unwrap(), b"a/data/0", u64::MAX - 2_047);
    fs::write(archive.path(), bytes).unwrap();
    let error = TorchValue::load(archive.path()).unwrap_err().to_string();
    assert!(error.contains("storage `0` extends beyond the file"), "{error}");
}

#[test]
fn every_beginning_of_a_file_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for name in ["tied", "tied_legacy", "tar"] {
        let whole = fs::read(golden().join(format!("{name}.pt"))).unwrap();
        // The oldest format, a tar archive, ends with zeros.
        let len = whole.iter().rposition(|&byte| byte != 0).unwrap();
        for end in (0..len).step_by(if name == "tar" { 37 } else { 1 }) {
            fs::write(file.path(), &whole[..end]).unwrap();
            assert!(TorchValue::load(file.path()).is_err(), "{name} of {end} bytes");
        }
    }
}

#[test]
fn a_safetensors_file_is_refused_with_the_function_that_reads_it() {
    let file = tempfile::NamedTempFile::new().unwrap();
    save_safetensors(&Linear::new(3, 2).unwrap().state_dict(), file.path()).unwrap();
    let error = load_torch(file.path()).err().unwrap().to_string();
    assert!(error.ends_with(": it is a safetensors file; load it with `load_safetensors`"), "{error}");
}

#[test]
fn a_tensor_that_is_negated_only_when_it_is_read_is_refused() {
    let plain = tensor_pickle(4, &[3], &[1], 0);
    let end = plain.len() - 3; // before `tR.`
    assert_eq!(&plain[end..], b"tR.");
    let with = |notes: &[u8]| [&plain[..end], notes, b"tR."].concat();
    assert!(TorchValue::load(archive(&with(b"}"), &[("data/0", &[0; 16])]).path()).is_ok());
    let refused = refusal(&with(b"}X\x03\x00\x00\x00neg\x88s"));
    assert!(refused.contains("save `x.resolve_conj().resolve_neg()` instead"), "{refused}");
}

#[test]
fn whole_modules_and_packed_archives_are_refused_with_what_to_do() {
    let module = b"(X\x06\x00\x00\x00modulectorch\nFloatTensor\nNNNtQ.";
    assert!(refusal(module).contains("torch.save(model.state_dict(), path)"), "{}", refusal(module));
    let script = archive(b"N.", &[("constants.pkl", b"N.")]);
    assert!(TorchValue::load(script.path()).unwrap_err().to_string().contains("TorchScript"));
}

#[test]
fn a_save_that_is_refused_leaves_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.pt");
    TorchValue::Int(1).save(&path).unwrap();
    let deep = (0..200).fold(TorchValue::None, |inner, _| TorchValue::List(vec![inner]));
    assert!(deep.save(&path).unwrap_err().to_string().contains("100 deep"));
    assert_eq!(TorchValue::load(&path).unwrap().as_int(), Some(1));
    let count = AnyTensor::from(Tensor::<Int>::full((), 3).unwrap());
    TorchValue::from(count).save(&path).unwrap();
    let read = TorchValue::load(&path).unwrap();
    assert_eq!(read.as_tensor().unwrap().int().unwrap().item::<i64>().unwrap(), 3);
}

#[test]
fn two_members_of_one_name_are_refused() {
    let archive = archive(&tensor_pickle(4, &[4], &[1], 0), &[("data/0", &[0; 16]), ("data/1", &[1; 16])]);
    assert!(TorchValue::load(archive.path()).is_ok());
    let mut bytes = fs::read(archive.path()).unwrap();
    while let Some(at) = bytes.windows(8).position(|name| name == b"a/data/1") {
        bytes[at + 7] = b'0';
    }
    fs::write(archive.path(), bytes).unwrap();
    let error = TorchValue::load(archive.path()).unwrap_err().to_string();
    assert!(error.contains("it lists 3 members with 2 different names"), "{error}");
}
