//! Host buffers, their parts, and parts of parts.

use std::ops::Range;

use pagelock_cuda::Result;
use pagelock_memory::HostBuffer;

use super::{
    model::{Bytes, Span, check, known},
    world::World,
};

/// A host buffer, and what it must hold.
pub(super) struct Host {
    buffer: HostBuffer,
    span: Span,
    cut: Option<(u64, usize)>,
}

const MAX_HOSTS: usize = 8;
const STEP: usize = 64; // parts start at its multiples

impl World {
    fn add_host(&mut self, buffer: HostBuffer, span: Span, cut: Option<(u64, usize)>) {
        while self.hosts.len() >= MAX_HOSTS {
            let at = self.dice.below(self.hosts.len());
            self.hosts.swap_remove(at);
        }
        self.hosts.push(Host { buffer, span, cut });
    }

    /// Allocates a host buffer and fills it with known bytes.
    pub(super) fn new_host(&mut self) -> Result<()> {
        let len = 1 + self.dice.below(6 * STEP);
        let mut buffer = HostBuffer::allocate(self.device.page_locked(), len)?;
        let bytes = self.dice.bytes(len);
        buffer.bytes_mut()?.copy_from_slice(&bytes);
        self.add_host(buffer, Span::new(known(&bytes)), None);
        Ok(())
    }

    pub(super) fn split_host(&mut self) -> Result<()> {
        let Some(at) = self.dice.at(&self.hosts) else { return Ok(()) };
        let Host { buffer, span, .. } = self.hosts.swap_remove(at);
        let ranges = self.ranges(buffer.len_bytes());
        let whole = self.id();
        let parts = buffer.split(ranges.iter().cloned())?;
        for (index, (part, range)) in parts.into_iter().zip(ranges).enumerate() {
            self.add_host(part, span.part(range), Some((whole, index)));
        }
        Ok(())
    }

    /// Ranges of at most three parts, with and without bytes between them.
    fn ranges(&mut self, len: usize) -> Vec<Range<usize>> {
        let mut starts: Vec<usize> = (0..len.div_ceil(STEP)).map(|step| step * STEP).collect();
        while starts.len() > 3 || (starts.len() > 1 && self.dice.one_in(3)) {
            let at = self.dice.below(starts.len());
            starts.remove(at);
        }
        let ends = starts.iter().skip(1).copied().chain([len]);
        let shorter =
            starts.iter().zip(ends).map(|(&start, end)| start..end - self.dice.pick(&[0, 0, 1]).min(end - start));
        shorter.collect()
    }

    pub(super) fn write_host(&mut self) -> Result<()> {
        let Some(at) = self.dice.at(&self.hosts) else { return Ok(()) };
        let host = &mut self.hosts[at];
        let bytes = self.dice.bytes(host.span.len);
        host.buffer.bytes_mut()?.copy_from_slice(&bytes);
        host.span.set(&known(&bytes));
        Ok(())
    }

    pub(super) fn read_host(&mut self) -> Result<()> {
        let Some(at) = self.dice.at(&self.hosts) else { return Ok(()) };
        let host = &self.hosts[at];
        check("a host buffer", host.buffer.bytes(), &host.span.get());
        Ok(())
    }

    pub(super) fn upload_host(&mut self) -> Result<()> {
        let Some(at) = self.dice.at(&self.hosts).filter(|&at| self.hosts[at].span.len > 0) else { return Ok(()) };
        let (stream, home) = (self.stream(), self.stream());
        let host = &self.hosts[at];
        let mut target = home.allocate(host.span.len)?;
        stream.upload_from(&host.buffer, &mut target)?;
        let span = Span::new(host.span.get());
        self.add_slot(target, span, None);
        Ok(())
    }

    /// Uploads two parts that follow each other, which is one copy, and then overwrites some host buffer.
    pub(super) fn upload_host_parts(&mut self) -> Result<()> {
        let hosts = &self.hosts;
        let pairs = hosts.iter().enumerate().flat_map(|(at, _)| (0..hosts.len()).map(move |next| [at, next]));
        let following: Vec<_> =
            pairs.filter(|&[this, next]| hosts[this].buffer.is_followed_by(&hosts[next].buffer)).collect();
        let Some(at) = self.dice.at(&following) else { return Ok(()) };
        let [this, next] = following[at];
        let (stream, home) = (self.stream(), self.stream());
        let (first, last) = (&self.hosts[this], &self.hosts[next]);
        let Some(span) = first.span.through(&last.span) else { panic!("a part of another buffer follows") };
        if span.len == 0 {
            return Ok(());
        }
        let target = home.allocate::<u8>(span.len)?;
        let mut parts = target.split([0..first.span.len, span.len - last.span.len..span.len])?;
        stream.upload_each([&first.buffer, &last.buffer].into_iter().zip(&mut parts))?;
        let spans = [Span::new(first.span.get()), Span::new(last.span.get())];
        for (part, span) in parts.into_iter().zip(spans).filter(|(_, span)| span.len > 0) {
            self.add_slot(part, span, None);
        }
        self.write_host()
    }

    pub(super) fn upload_all(&mut self) -> Result<()> {
        let stream = self.stream();
        let sources: Vec<_> = self.hosts.iter().map(|host| (&host.buffer).into()).collect();
        let buffers = stream.upload_all(&sources)?;
        let spans: Vec<_> = self.hosts.iter().map(|host| Span::new(host.span.get())).collect();
        for (buffer, span) in buffers.into_iter().zip(spans).filter(|(_, span)| span.len > 0) {
            self.add_slot(buffer, span, None);
        }
        self.write_host()
    }

    pub(super) fn download_host(&mut self) -> Result<()> {
        let Some(at) = self.dice.at(&self.hosts) else { return Ok(()) };
        let stream = self.stream();
        let host = &mut self.hosts[at];
        let Some(slot) = self.slots.iter().find(|slot| slot.span.len >= host.span.len) else { return Ok(()) };
        host.span.fill(None);
        stream.download_to(slot.buffer.slice(..host.span.len)?, &mut host.buffer)?;
        host.span.set(&slot.span.part(0..host.span.len).get());
        Ok(())
    }

    /// Downloads two buffers that follow each other, which is one copy.
    pub(super) fn download_parts(&mut self) -> Result<()> {
        let Some([this, next]) = self.dice.two(&self.slots) else { return Ok(()) };
        let stream = self.stream();
        let (first, last) = (&self.slots[this], &self.slots[next]);
        if !first.buffer.is_followed_by(&last.buffer) {
            return Ok(());
        }
        // Buffers that were uploaded together may share a block, too.
        let start_of_last = (last.buffer.address().0 - first.buffer.address().0) as usize;
        if !start_of_last.is_multiple_of(STEP) {
            return Ok(()); // a host buffer cannot be split there
        }
        let ranges = [0..first.span.len, start_of_last..start_of_last + last.span.len];
        let target = HostBuffer::allocate(self.device.page_locked(), ranges[1].end)?;
        let mut parts = target.split(ranges.clone())?;
        let downloaded = stream.download_each([&first.buffer, &last.buffer].into_iter().zip(&mut parts));
        let between = vec![None; start_of_last - first.span.len]; // in neither part
        let bytes: Bytes = [first.span.get(), between, last.span.get()].concat();
        let span = Span::new(if downloaded.is_ok() { bytes } else { vec![None; bytes.len()] });
        let whole = self.id();
        for (index, (part, range)) in parts.into_iter().zip(ranges).enumerate() {
            self.add_host(part, span.part(range), Some((whole, index)));
        }
        downloaded
    }

    pub(super) fn drop_host(&mut self) -> Result<()> {
        let Some(at) = self.dice.at(&self.hosts) else { return Ok(()) };
        let Host { buffer, .. } = self.hosts.swap_remove(at);
        if self.dice.one_in(2) {
            drop(buffer.drop_without_waiting());
        }
        Ok(())
    }

    /// Checks what every buffer holds, and which buffers it reports as following it.
    pub(super) fn check_hosts(&self) {
        for host in &self.hosts {
            check("a host buffer", host.buffer.bytes(), &host.span.get());
        }
        let follows = |this: Option<(u64, usize)>, next| this.map(|(whole, index)| (whole, index + 1)) == next;
        for this in &self.hosts {
            for next in self.hosts.iter().filter(|next| next.cut.is_some()) {
                let must = follows(this.cut, next.cut);
                assert_eq!(this.buffer.is_followed_by(&next.buffer), must, "{:?} and {:?}", this.cut, next.cut);
            }
        }
        for this in self.slots.iter().filter(|this| this.cut.is_some()) {
            for next in self.slots.iter().filter(|next| next.cut.is_some()) {
                let must = follows(this.cut, next.cut);
                assert_eq!(this.buffer.is_followed_by(&next.buffer), must, "{:?} and {:?}", this.cut, next.cut);
            }
        }
    }
}
