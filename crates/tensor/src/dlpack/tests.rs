//! Round trips through the structs, and structs that another library would not make.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pagelock_cuda as cuda;

use super::*;
use crate::{Bool, Tensor};

/// The same struct after a round trip through its raw pointer.
fn returned(dlpack: Dlpack) -> Dlpack {
    // SAFETY: it was just made, and nobody else has it; nobody writes the elements.
    unsafe { Dlpack::from_raw(dlpack.into_raw()) }
}

fn numbers(tensor: &AnyTensor) -> Vec<f64> {
    tensor.float().unwrap().to_vec().unwrap()
}

#[test]
fn all_element_types_go_out_and_come_back() {
    let counts = Tensor::new([[1, 0, 3], [4, 5, 6]]).unwrap();
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let x = AnyTensor::from(counts.to_float().unwrap().to_dtype(dtype).unwrap());
        let back = returned(Dlpack::new(x.clone()).unwrap()).to_tensor().unwrap();
        assert_eq!((back.dtype(), back.dims()), (dtype, &[2, 3][..]));
        assert_eq!(numbers(&back), numbers(&x));
    }
    for dtype in [DType::U8, DType::I32, DType::I64] {
        let x = counts.to_dtype(dtype).unwrap();
        let back = returned(Dlpack::new(&x).unwrap()).to_tensor().unwrap();
        assert_eq!((back.dtype(), back.int().unwrap().to_vec::<i64>().unwrap()), (dtype, vec![1, 0, 3, 4, 5, 6]));
    }
    let back = returned(Dlpack::new(counts.ne_scalar(0).unwrap()).unwrap()).to_tensor().unwrap();
    assert_eq!(back.bool().unwrap().to_vec::<bool>().unwrap(), [true, false, true, true, true, true]);
}

#[test]
fn shapes_and_strides_of_views_go_along() {
    let x = Tensor::arange(0.0, 24.0, 1.0).unwrap().reshape([2, 3, 4]).unwrap();
    let views = [
        x.permute([2, 0, 1]).unwrap(),
        x.slice(2, 1..4, 2).unwrap(),
        x.select(1, 2).unwrap(),
        x.select(0, 1).unwrap().select(0, 0).unwrap().select(0, 3).unwrap(),
        x.narrow(0, 0, 1).unwrap().expand([5, 3, 4]).unwrap(),
        x.narrow(1, 0, 0).unwrap(),
    ];
    for view in views {
        // SAFETY: nobody writes the elements.
        let shared = || returned(unsafe { Dlpack::sharing(&view).unwrap() });
        assert_eq!(shared().is_read_only(), view.layout().overlaps());
        let copied = shared().to_tensor().unwrap();
        assert_eq!((copied.dims(), numbers(&copied)), (view.dims(), view.to_vec::<f64>().unwrap()));
    }
}

#[test]
fn a_copy_is_another_tensor_and_a_shared_one_the_same() {
    let x = Tensor::new([1.0, 2.0]).unwrap();
    let (copied, shared) = (Dlpack::new(&x).unwrap(), {
        // SAFETY: it is written below, while nobody reads it.
        unsafe { Dlpack::sharing(&x).unwrap() }
    });
    x.fill_(7.0).unwrap();
    assert_eq!(numbers(&copied.to_tensor().unwrap()), [1.0, 2.0]);
    assert_eq!(numbers(&shared.to_tensor().unwrap()), [7.0, 7.0]);
}

#[test]
fn a_shared_tensor_keeps_its_storage_and_cannot_be_changed_in_place() {
    let x = Tensor::arange(0.0, 64.0, 1.0).unwrap();
    // SAFETY: nobody writes the elements.
    let shared = returned(unsafe { Dlpack::sharing(&x) }.unwrap());
    // SAFETY: as above.
    let shared = unsafe { shared.into_shared_tensor() }.unwrap().float().unwrap();
    drop(x);
    assert_eq!(shared.sum(..).unwrap().item::<f32>().unwrap(), 2016.0);
    assert_eq!(
        shared.fill_(0.0).unwrap_err().to_string(),
        "fill_: [64] cannot be changed in place: cannot write to a foreign buffer of 256 B: it is read-only; copy it to an allocated buffer \
         first"
    );
}

#[test]
fn a_first_element_that_is_not_aligned_to_64_bytes_cannot_be_shared() {
    let x = Tensor::arange(0.0, 9.0, 1.0).unwrap().narrow(0, 1, 8).unwrap();
    // SAFETY: nobody writes the elements.
    let shared = unsafe { Dlpack::sharing(&x) }.unwrap();
    // SAFETY: as above.
    let refused = unsafe { shared.into_shared_tensor() }.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "dlpack: the address of the first element is not a multiple of 64 bytes; copy the elements with `to_tensor`"
    );
}

#[test]
fn the_struct_without_a_version_is_wrapped_both_ways() {
    let x = Tensor::new([[1.0, 2.0, 3.0]]).unwrap();
    let pointer = Dlpack::new(&x).unwrap().into_raw_unversioned().unwrap();
    // SAFETY: it was just made, and nobody else has it.
    let back = unsafe { Dlpack::from_raw_unversioned(pointer) };
    assert_eq!(numbers(&back.to_tensor().unwrap()), [1.0, 2.0, 3.0]);
    // SAFETY: nobody writes the elements.
    let read_only = unsafe { Dlpack::sharing(x.expand([4, 1, 3]).unwrap()).unwrap() };
    assert_eq!(
        read_only.into_raw_unversioned().unwrap_err().to_string(),
        "dlpack: the elements are read-only, which a struct without a version cannot state; use the versioned one, or a \
         copy"
    );
}

/// A struct of six floats as another library could have made it, modified by `change`, and a count of the calls of
/// its deleter.
fn changed(change: impl FnOnce(&mut TestTensor)) -> (Dlpack, Arc<AtomicUsize>) {
    let deleted = Arc::new(AtomicUsize::new(0));
    let versioned = RawVersioned {
        version: [1, 1],
        context: std::ptr::null_mut(),
        deleter: Some(delete_test_tensor),
        flags: 0,
        data: std::ptr::null_mut(),
        device: [1, 0],
        rank: 2,
        data_type: (2, 32, 1),
        shape: std::ptr::null(),
        strides: std::ptr::null(),
        byte_offset: 0,
    };
    let elements = (0..6).flat_map(|i| (i as f32).to_ne_bytes()).collect();
    let made = TestTensor { versioned, elements, shape: vec![2, 3], strides: None, deleted: deleted.clone() };
    let mut made = Box::new(made);
    change(&mut made);
    made.versioned.data = made.elements.as_mut_ptr().cast();
    made.versioned.shape = made.shape.as_ptr();
    made.versioned.strides = made.strides.as_ref().map_or(std::ptr::null(), |strides| strides.as_ptr());
    let made = Box::into_raw(made);
    // SAFETY: it was just made of a box.
    unsafe { (*made).versioned.context = made.cast() };
    let pointer = NonNull::new(made.cast::<c_void>()).unwrap();
    // SAFETY: the struct comes first, is laid out as DLPack describes it, and nobody else has it.
    (unsafe { Dlpack::from_raw(pointer) }, deleted)
}

/// A struct and everything that it points to.
#[repr(C)]
struct TestTensor {
    versioned: RawVersioned,
    elements: Vec<u8>,
    shape: Vec<i64>,
    strides: Option<Vec<i64>>,
    deleted: Arc<AtomicUsize>,
}

/// `DLManagedTensorVersioned`, laid out as in DLPack's header.
#[repr(C)]
struct RawVersioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut RawVersioned)>,
    flags: u64,
    data: *mut c_void,
    device: [i32; 2],
    rank: i32,
    data_type: (u8, u8, u16),
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

unsafe extern "C" fn delete_test_tensor(versioned: *mut RawVersioned) {
    // SAFETY: the struct is valid until its deleter runs.
    let context = unsafe { &*versioned }.context;
    // SAFETY: `changed` made it of a box.
    let made = unsafe { Box::from_raw(context.cast::<TestTensor>()) };
    made.deleted.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn elements_are_read_at_any_strides_and_the_deleter_is_called_once() {
    let cases: [(&[i64], u64, &[f64]); 3] = [
        (&[1, 2], 0, &[0.0, 2.0, 4.0, 1.0, 3.0, 5.0]),
        (&[-3, -1], 20, &[5.0, 4.0, 3.0, 2.0, 1.0, 0.0]),
        (&[0, 1], 8, &[2.0, 3.0, 4.0, 2.0, 3.0, 4.0]),
    ];
    for (strides, offset, expected) in cases {
        let (dlpack, deleted) = changed(|made| {
            made.strides = Some(strides.to_vec());
            made.versioned.byte_offset = offset;
        });
        assert_eq!(numbers(&dlpack.to_tensor().unwrap()), expected);
        assert_eq!(deleted.load(Ordering::Relaxed), 0);
        drop(dlpack);
        assert_eq!(deleted.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn bytes_that_are_not_0_are_true() {
    let (dlpack, _) = changed(|made| {
        made.elements = vec![0, 1, 2, 255, 0, 7];
        made.versioned.data_type = (6, 8, 1);
    });
    let found = dlpack.to_tensor().unwrap().kind::<Bool>().unwrap();
    assert_eq!(found.to_vec::<bool>().unwrap(), [false, true, true, true, false, true]);
}

#[test]
fn what_no_tensor_has_is_refused() {
    let refused = |change: &dyn Fn(&mut TestTensor)| {
        let (dlpack, deleted) = changed(change);
        let text = dlpack.to_tensor().unwrap_err().to_string();
        drop(dlpack);
        assert_eq!(deleted.load(Ordering::Relaxed), 1);
        text.strip_prefix("dlpack: ").unwrap_or(&text).to_owned()
    };
    assert_eq!(
        refused(&|made| made.versioned.version = [2, 5]),
        "the struct is of version 2.5, which is not supported; ask for version 1"
    );
    assert_eq!(
        refused(&|made| made.versioned.device = [10, 0]),
        "the elements are on a device of kind 10; copy them to the CPU first"
    );
    assert_eq!(
        refused(&|made| made.versioned.data_type = (5, 64, 1)),
        "the elements are complex64, which no tensor can hold; convert them first"
    );
    assert_eq!(
        refused(&|made| made.versioned.data_type = (2, 32, 4)),
        "the elements are float32 × 4, which no tensor can hold; convert them first"
    );
    assert_eq!(
        refused(&|made| made.versioned.rank = 9),
        "the shape has 9 sizes, but a tensor has at most 8; reshape it first"
    );
    assert_eq!(
        refused(&|made| made.versioned.rank = -1),
        "the shape has -1 sizes, but a tensor has at most 8; reshape it first"
    );
    assert_eq!(refused(&|made| made.shape = vec![-2, 3]), "the shape has a negative size; give another");
    assert_eq!(
        refused(&|made| made.strides = Some(vec![i64::MAX, 2])),
        format!("strides [{}, 2] of [2, 3] lead beyond the address space; check them", i64::MAX)
    );
}

#[test]
fn memory_of_a_device_is_copied_there_and_given_back_when_the_device_is_done() {
    let software = cuda::Device::software(cuda::software::Config::default()).unwrap();
    let device = Device::try_from(&software).unwrap();
    let before = software.live_memory();
    let x = Tensor::arange(0.0, 6.0, 1.0).unwrap().reshape([2, 3]).unwrap().to(&device).unwrap();
    // SAFETY: nobody writes the elements. (A copy needs a kernel, which no software device has.)
    let dlpack = returned(unsafe { Dlpack::sharing(&x).unwrap() });
    drop(x);
    assert!(software.live_memory() > before);
    let copied = dlpack.copied_on(&ForeignTensor::of(&dlpack.managed).unwrap(), &device).unwrap();
    assert_eq!((copied.device(), copied.dims()), (device.clone(), &[2, 3][..]));
    assert_eq!(numbers(&copied), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    // SAFETY: nobody writes the elements.
    let refused = unsafe { dlpack.into_shared_tensor() }.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "dlpack: the elements are on a device, where they cannot be shared; copy them with `to_tensor`"
    );
    drop(copied);
    assert_eq!((software.live_memory(), software.leaked().count), (before, 0));
}

#[test]
fn a_gpu_gives_copies_of_all_element_types_and_takes_them_back() {
    let Ok(device) = Device::cuda(0).inspect_err(|missing| eprintln!("SKIPPED: {missing}")) else { return };
    let x = Tensor::arange(0.0, 6.0, 1.0).unwrap().reshape([2, 3]).unwrap().to(&device).unwrap();
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let view = x.to_dtype(dtype).unwrap().t().unwrap();
        let copied = returned(Dlpack::new(&view).unwrap()).to_tensor().unwrap();
        assert_eq!((copied.device(), copied.dtype(), copied.dims()), (device.clone(), dtype, &[3, 2][..]));
        assert_eq!(numbers(&copied), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        // SAFETY: nobody writes the elements.
        let shared = returned(unsafe { Dlpack::sharing(&view).unwrap() }).to_tensor().unwrap();
        assert_eq!(numbers(&shared), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    }
    let back = returned(Dlpack::new(x.gt_scalar(2.0).unwrap()).unwrap()).to_tensor().unwrap();
    assert_eq!(back.bool().unwrap().to_vec::<bool>().unwrap(), [false, false, false, true, true, true]);
}
