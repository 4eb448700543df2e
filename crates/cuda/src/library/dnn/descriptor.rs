//! [`Descriptor`]: the kind of object of which everything in cuDNN's graph interface is built.

use std::{
    ffi::{c_int, c_void},
    mem, ptr,
};

use super::{Api, header::*};
use crate::library::work::{Handle, Refusal, check_status};

/// The value of an attribute.
pub(super) enum Values<'a> {
    Integers(&'a [i64]),
    Number(f32),
    DoubleNumber(f64),
    /// A value of a C enum: the attribute type of the enum, and the value.
    Enum(c_int, c_int),
    Flag(bool),
    Descriptors(&'a [&'a Descriptor]),
    /// The library's own handle.
    Library(*mut c_void),
    /// Device addresses, or host addresses with exposed provenance.
    Addresses(&'a [u64]),
}

/// An object of the library.
pub(super) struct Descriptor {
    api: &'static Api,
    handle: Handle,
}

impl Descriptor {
    /// A new object of that kind, without attributes.
    pub(super) fn new(api: &'static Api, kind: c_int) -> Result<Descriptor, Refusal> {
        let mut handle = ptr::null_mut();
        // SAFETY: writes one handle.
        check_status("cudnnBackendCreateDescriptor", unsafe { (api.create_descriptor)(kind, &mut handle) })?;
        Ok(Descriptor { api, handle: Handle::new(handle) })
    }

    /// A finalized object with these attributes.
    pub(super) fn with(
        api: &'static Api,
        kind: c_int,
        attributes: &[(c_int, Values<'_>)],
    ) -> Result<Descriptor, Refusal> {
        let descriptor = Descriptor::new(api, kind)?;
        attributes.iter().try_for_each(|(name, values)| descriptor.set(*name, values))?;
        descriptor.finalized()
    }

    /// Finalizes the object, so that it can be used.
    pub(super) fn finalized(self) -> Result<Descriptor, Refusal> {
        // SAFETY: the library's own object.
        check_status("cudnnBackendFinalize", unsafe { (self.api.finalize)(self.get()) })?;
        Ok(self)
    }

    pub(super) fn get(&self) -> *mut c_void {
        self.handle.get()
    }

    pub(super) fn set(&self, name: c_int, values: &Values<'_>) -> Result<(), Refusal> {
        match values {
            Values::Integers(values) => self.set_all(name, CUDNN_TYPE_INT64, values),
            Values::Number(value) => self.set_all(name, CUDNN_TYPE_FLOAT, &[*value]),
            Values::DoubleNumber(value) => self.set_all(name, CUDNN_TYPE_DOUBLE, &[*value]),
            Values::Enum(kind, value) => self.set_all(name, *kind, &[*value]),
            Values::Flag(value) => self.set_all(name, CUDNN_TYPE_BOOLEAN, &[*value]),
            Values::Library(handle) => self.set_all(name, CUDNN_TYPE_HANDLE, &[*handle]),
            Values::Descriptors(list) => {
                let handles: Vec<_> = list.iter().map(|descriptor| descriptor.get()).collect();
                self.set_all(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &handles)
            }
            Values::Addresses(list) => {
                let pointer = |&address| ptr::with_exposed_provenance_mut::<c_void>(address as usize);
                let pointers: Vec<_> = list.iter().map(pointer).collect();
                self.set_all(name, CUDNN_TYPE_VOID_PTR, &pointers)
            }
        }
    }

    fn set_all<V: Copy>(&self, name: c_int, kind: c_int, values: &[V]) -> Result<(), Refusal> {
        let (count, first) = (values.len() as i64, values.as_ptr().cast());
        // SAFETY: an object of the library, which copies `count` values; `set` passes the type that belongs to
        // `kind`.
        let status = unsafe { (self.api.set)(self.get(), name, kind, count, first) };
        check_status("cudnnBackendSetAttribute", status)
    }

    /// The value of an attribute that is one integer.
    pub(super) fn integer(&self, name: c_int) -> Result<i64, Refusal> {
        let (mut value, mut count) = (0_i64, 0);
        // SAFETY: the library's own object; writes at most one number of that type.
        let status = unsafe {
            (self.api.get)(self.get(), name, CUDNN_TYPE_INT64, 1, &mut count, ptr::from_mut(&mut value).cast())
        };
        check_status("cudnnBackendGetAttribute", status).map(|()| value)
    }

    /// The values of an attribute that is a list of C enums; at most 32 of them.
    pub(super) fn enums(&self, name: c_int, kind: c_int) -> Result<Vec<c_int>, Refusal> {
        let (mut values, mut count) = ([0 as c_int; 32], 0);
        // SAFETY: an object of the library; writes at most 32 values, which is the length of the array.
        let status = unsafe { (self.api.get)(self.get(), name, kind, 32, &mut count, values.as_mut_ptr().cast()) };
        check_status("cudnnBackendGetAttribute", status)?;
        Ok(values[..(count.max(0) as usize).min(values.len())].to_vec())
    }

    /// The values of an attribute that is a list of objects of a kind; at most `most` of them.
    pub(super) fn descriptors(&self, name: c_int, kind: c_int, most: usize) -> Result<Vec<Descriptor>, Refusal> {
        let mut list: Vec<Descriptor> = (0..most).map(|_| Descriptor::new(self.api, kind)).collect::<Result<_, _>>()?;
        let mut handles: Vec<_> = list.iter().map(Descriptor::get).collect();
        let mut count = 0;
        // SAFETY: the library's own object; fills at most the given number of objects of that kind.
        let status = unsafe {
            (self.api.get)(
                self.get(),
                name,
                CUDNN_TYPE_BACKEND_DESCRIPTOR,
                most as i64,
                &mut count,
                handles.as_mut_ptr().cast(),
            )
        };
        check_status("cudnnBackendGetAttribute", status)?;
        list.truncate(count.max(0) as usize);
        Ok(list)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made in `new`, and not used after this.
        unsafe { (self.api.destroy_descriptor)(self.get()) };
    }
}

const _: () = assert!(mem::size_of::<*mut c_void>() == 8);
