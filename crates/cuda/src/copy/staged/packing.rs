//! [`Packing`]: many small slices as one copy, which begins while its caller still looks for them.
//!
//! Where each slice will lie follows from its length, so the call plans the copy before it knows any slice. The caller then
//! gives one after another; what is given is copied and sent meanwhile, and what the caller does besides costs no time.
//!
//! Invariant: slices are borrowed for longer than the call, and the upload, which lets go of them when it is dropped, lives
//! in the call's frame: its caller only has a reference that fits no other call.

use std::marker::PhantomData;

use super::{
    Part, Staging,
    job::Start,
    packed::{Packed, fit_in_a_block, layout, pieces},
    up::Upload,
};
use crate::{
    element::{element_size, len_bytes},
    error::{Error, Result},
    host_function,
    stream::Stream,
};

/// Takes the slices of a packed upload; see [`Stream::upload_all_packed`].
pub struct Packing<'call, 'slices> {
    upload: Upload<'call>,
    lens: &'call [usize],
    block_lens: Vec<usize>,
    added: usize, // slices
    failure: Option<Error>,
    slices: PhantomData<&'slices mut &'slices ()>, // invariant, as in `std::thread::Scope`
}

impl<'slices> Packing<'_, 'slices> {
    /// Adds the next slice, which is as long as was said.
    #[inline]
    pub fn add(&mut self, slice: &'slices [u8]) {
        match self.lens.get(self.added) {
            Some(&len) if len == slice.len() => {
                self.upload.give(slice);
                self.added += 1;
            }
            other => self.refuse(slice.len(), other.copied()),
        }
    }

    /// Sends what is filled, so that the device need not wait; to be called every few microseconds.
    pub fn go_on(&mut self) {
        if self.failure.is_none() {
            self.failure = self.upload.go_on().err();
        }
    }

    /// How many slices each block will have.
    pub fn block_lens(&self) -> &[usize] {
        &self.block_lens
    }

    #[cold]
    fn refuse(&mut self, source_len: usize, target_len: Option<usize>) {
        let refused = Error::Length { source_len, target_len: target_len.unwrap_or(0) };
        self.failure.get_or_insert(refused);
    }

    /// Returns when the slices were read and everything is queued.
    fn finish(mut self) -> Result<()> {
        self.go_on();
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        match self.lens.get(self.added) {
            Some(&missing) => Err(Error::Length { source_len: 0, target_len: missing }),
            None => self.upload.run(),
        }
    }
}

impl Stream {
    /// Copies slices of these lengths as one; neighbors share a block of the device's memory. None if `give` gives up.
    pub(in crate::copy) fn upload_as_given<'slices, R>(
        &self,
        lens: &[usize],
        threads: Option<usize>,
        give: impl FnOnce(&mut Packing<'_, 'slices>) -> Option<R>,
    ) -> Result<Option<(Vec<Packed<u8>>, R)>> {
        host_function::refuse_inside()?;
        let staging = Staging::of(self)?;
        let len_bytes =
            lens.iter().try_fold(0_usize, |sum, &len| sum.checked_add(len)).and_then(|sum| len_bytes::<u8>(sum).ok());
        let too_long = Error::TooLong { len: usize::MAX, element: element_size::<u8>() };
        let len_bytes = len_bytes.ok_or(too_long)?;
        staging.expect_upload(len_bytes);
        let mut plan = staging.plan_upload(len_bytes).with_helpers(threads);
        let (mut blocks, mut parts, mut rest) = (Vec::new(), Vec::new(), lens);
        while !rest.is_empty() {
            let (ours, others) = rest.split_at(fit_in_a_block(rest));
            let (ranges, len) = layout::<u8>(ours.iter().copied())?;
            let buffer = self.allocate::<u8>(len)?;
            let starts = std::iter::repeat_n(Start::Open, ours.len());
            let (longer, of_block) = pieces::<u8>(plan, starts, &ranges, buffer.address(), &[]);
            let at = blocks.len();
            parts.extend(of_block.into_iter().map(|part| Part { buffers: at..at + 1, ..part }));
            blocks.push(Packed::new(buffer, ranges));
            (plan, rest) = (longer, others);
        }
        let block_lens = blocks.iter().map(Packed::len).collect();
        let targets: Vec<_> = blocks.iter_mut().map(Packed::access).collect();
        let upload = staging.begin_upload(self.core(), plan, &targets, &parts);
        let mut packing = Packing { upload, lens, block_lens, added: 0, failure: None, slices: PhantomData };
        let Some(made) = give(&mut packing) else { return Ok(None) };
        packing.finish()?;
        Ok(Some((blocks, made)))
    }
}
