//! [`Dlpack`] as C functions for `numpy_and_torch.py`, which loads this library with `ctypes`.
//!
//! A tensor is a pointer that [`pagelock_free`] frees. A function that fails returns null, and [`pagelock_error`]
//! returns the error. All calls are made on one thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_void};
use std::ptr::{NonNull, null_mut};

use pagelock_memory::default_host;
use pagelock_tensor::{AnyTensor, Dlpack, Error, Result};

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

fn or_null<T>(made: Result<T>, to_pointer: impl FnOnce(T) -> *mut c_void) -> *mut c_void {
    made.map(to_pointer).unwrap_or_else(|error| {
        ERROR.set(CString::new(error.to_string()).unwrap_or_default());
        null_mut()
    })
}

fn boxed(tensor: AnyTensor) -> *mut c_void {
    Box::into_raw(Box::new(tensor)).cast()
}

fn not_null(pointer: *mut c_void) -> Result<NonNull<c_void>> {
    NonNull::new(pointer).ok_or_else(|| Error::Argument("the pointer is null".to_owned()))
}

/// The error of the last call that failed. The text is valid until another call fails.
#[unsafe(no_mangle)]
pub extern "C" fn pagelock_error() -> *const c_char {
    ERROR.with_borrow(|text| text.as_ptr())
}

/// Wraps a struct of another library.
///
/// # Safety
/// As [`Dlpack::from_raw`].
unsafe fn given(pointer: NonNull<c_void>, is_versioned: bool) -> Dlpack {
    if is_versioned {
        // SAFETY: the caller's promise.
        unsafe { Dlpack::from_raw(pointer) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { Dlpack::from_raw_unversioned(pointer) }
    }
}

/// A tensor with the elements of a struct, copied or shared. The struct's deleter is called when they are no longer
/// needed.
///
/// # Safety
/// As [`Dlpack::from_raw`], and as [`Dlpack::into_shared_tensor`] if the elements are shared.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagelock_take(pointer: *mut c_void, is_versioned: bool, is_shared: bool) -> *mut c_void {
    let taken = not_null(pointer).and_then(|pointer| {
        // SAFETY: the caller's promise.
        let given = unsafe { given(pointer, is_versioned) };
        if !is_shared {
            return given.to_tensor();
        }
        // SAFETY: the caller's promise.
        unsafe { given.into_shared_tensor() }
    });
    or_null(taken, boxed)
}

/// A struct with the elements of a tensor, copied or shared.
///
/// # Safety
/// One of these functions returned the tensor, and it is not freed. If the elements are shared, as
/// [`Dlpack::sharing`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagelock_give(tensor: *const c_void, is_versioned: bool, is_shared: bool) -> *mut c_void {
    // SAFETY: the caller's promise.
    let tensor = unsafe { &*tensor.cast::<AnyTensor>() }.clone();
    let made = if is_shared {
        // SAFETY: the caller's promise.
        unsafe { Dlpack::sharing(tensor) }
    } else {
        Dlpack::new(tensor)
    };
    let pointer = made.and_then(|made| if is_versioned { Ok(made.into_raw()) } else { made.into_raw_unversioned() });
    or_null(pointer, NonNull::as_ptr)
}

/// Calls the deleter of a struct that nobody took.
///
/// # Safety
/// As [`Dlpack::from_raw`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagelock_refuse(pointer: *mut c_void, is_versioned: bool) {
    // SAFETY: the caller's promise.
    drop(not_null(pointer).map(|pointer| unsafe { given(pointer, is_versioned) }));
}

/// A view with the first dimension moved to the end, or with a new first dimension that is expanded to five.
///
/// # Safety
/// One of these functions returned the tensor, and it is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagelock_view(tensor: *const c_void, is_expanded: bool) -> *mut c_void {
    // SAFETY: the caller's promise.
    let tensor = unsafe { &*tensor.cast::<AnyTensor>() };
    let view = tensor
        .float()
        .and_then(|x| if is_expanded { x.unsqueeze(0)?.expand([5, -1, -1]) } else { x.movedim(&[0], &[-1]) });
    or_null(view, |view| boxed(view.into()))
}

/// Frees a tensor.
///
/// # Safety
/// One of these functions returned the tensor, and it is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagelock_free(tensor: *mut c_void) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(tensor.cast::<AnyTensor>()) });
}

/// The bytes of tensors on the host.
#[unsafe(no_mangle)]
pub extern "C" fn pagelock_used() -> u64 {
    default_host().stats().live_bytes as u64
}
