//! Moves of a [`TensorMap`]: to devices, to page-locked memory, into one block.

use pagelock_cuda::PageLockedMemory;
use pagelock_memory::{Resource, default_host};

use super::{AnyTensor, TensorMap};
use crate::device::Device;
use crate::error::Result;
use crate::tensor::Raw;
use crate::transfer::many::{self, Moved};
use crate::transfer::{page_locked, page_locked_of};

impl TensorMap {
    /// This map on `device`. Tensors that are there already are shared, the others are copied together, by the
    /// fastest routes. Small ones, and those that lie [in one block](Self::consolidate), move as one copy.
    ///
    /// As with [`Tensor::to`](crate::Tensor::to), nothing can race, and gradients flow back. Ordinary memory needs no page-locked
    /// copy first: it goes through a small page-locked ring that all copies share.
    ///
    /// # Errors
    /// [`Error::DeviceMemory`](crate::Error::DeviceMemory) or [`Error::Memory`](crate::Error::Memory) if there is no room;
    /// [`Error::Cuda`](crate::Error::Cuda).
    ///
    /// # Examples
    /// ```
    /// # use pagelock_tensor::{Device, Tensor, TensorMap};
    /// let mut map = TensorMap::new([8])?;
    /// map.set("x", Tensor::ones([8, 3])?)?;
    /// let there = map.to(&Device::best())?;
    /// assert_eq!(there.device(), Some(Device::best()));
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn to(&self, device: &Device) -> Result<TensorMap> {
        let _here = pagelock_cuda::here();
        self.moved("to", |raws| many::all_to(raws, device))
    }

    /// This map in page-locked memory, from which GPUs copy fastest and without blocking the program. Tensors that
    /// are there already are shared, the others are copied into one block by as many threads as kernels use.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the budget of page-locked memory refuses, or, without a GPU, the system's limit
    /// on locked pages; [`Error::OnDevice`](crate::Error::OnDevice) for a tensor that is not on the host.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_tensor::{Tensor, TensorMap};
    /// let mut map = TensorMap::new([8])?;
    /// map.set("x", Tensor::ones([8, 3])?)?;
    /// assert!(map.pin_memory()?.is_pinned());
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn pin_memory(&self) -> Result<TensorMap> {
        self.pin_memory_by(None)
    }

    /// As [`pin_memory`](Self::pin_memory), with this number of threads, including the caller.
    ///
    /// # Errors
    /// As [`pin_memory`](Self::pin_memory).
    pub fn pin_memory_by(&self, threads: Option<usize>) -> Result<TensorMap> {
        self.pinned_in(page_locked(), threads)
    }

    /// As [`pin_memory`](Self::pin_memory), in the page-locked memory of that device.
    ///
    /// # Errors
    /// As [`pin_memory`](Self::pin_memory); for the CPU, [`Error::Argument`](crate::Error::Argument).
    pub fn pin_memory_for(&self, device: &Device) -> Result<TensorMap> {
        self.pinned_in(page_locked_of(device)?, None)
    }

    fn pinned_in(&self, memory: &PageLockedMemory, threads: Option<usize>) -> Result<TensorMap> {
        self.moved("pin_memory", |raws| {
            let is_pinned: Vec<bool> = raws.iter().map(|raw| many::is_pinned(raw)).collect();
            let rest = raws.iter().zip(&is_pinned).filter(|(_, is_pinned)| !**is_pinned);
            let rest: Vec<&Raw> = rest.map(|(raw, _)| *raw).collect();
            let mut copies = copies_in("pin_memory", &rest, memory, threads)?.into_iter();
            let pick = |is_pinned| if is_pinned { Some(Moved::Stays) } else { copies.next() };
            Ok(is_pinned.into_iter().filter_map(pick).collect())
        })
    }

    /// Whether every tensor is in page-locked memory.
    pub fn is_pinned(&self) -> bool {
        let mut all = true;
        self.walk(&mut |tensor| all = all && tensor.is_pinned());
        all
    }

    /// Copies all tensors into one block of memory, one behind the other, on the host or on the device where they
    /// are. A block moves as one copy, and is freed with the last of its tensors.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) or [`Error::DeviceMemory`](crate::Error::DeviceMemory) if there is no room;
    /// [`Error::OnDevice`](crate::Error::OnDevice) if they are not all in one place.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_tensor::{Tensor, TensorMap};
    /// let mut map = TensorMap::new([8])?;
    /// map.set("x", Tensor::ones([8, 3])?)?;
    /// map.set("y", Tensor::ones([8])?)?;
    /// assert!(!map.is_consolidated() && map.consolidate()?.is_consolidated());
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn consolidate(&self) -> Result<TensorMap> {
        let device = self.device();
        self.moved("consolidate", |raws| match &device {
            Some(device @ Device::Cuda(cuda)) => {
                let made = many::all_in_device("consolidate", raws, device, cuda)?;
                Ok(made.into_iter().map(Moved::Contiguous).collect())
            }
            _ => copies_in("consolidate", raws, default_host(), None),
        })
    }

    /// Whether all tensors lie in one block, in their order, so that one copy moves them all.
    pub fn is_consolidated(&self) -> bool {
        many::are_one(&self.raws())
    }

    fn raws(&self) -> Vec<&Raw> {
        let mut raws = Vec::new();
        self.walk(&mut |tensor| raws.push(tensor.raw()));
        raws
    }

    /// The same map with the tensors that `make` returns for all of its tensors, in order. The moves are recorded for
    /// gradients.
    fn moved(&self, name: &'static str, make: impl FnOnce(&[&Raw]) -> Result<Vec<Moved>>) -> Result<TensorMap> {
        let mut moved = make(&self.raws())?.into_iter();
        let recorded = &mut |tensor: &AnyTensor| {
            let moved = moved.next().unwrap_or_else(|| unreachable!("`make` returns one for each tensor"));
            Ok(AnyTensor::new(moved.recorded(name, tensor.raw())))
        };
        self.rebuilt(recorded, &|batch| Ok(*batch))
    }
}

fn copies_in<R: Resource>(op: &'static str, raws: &[&Raw], resource: &R, threads: Option<usize>) -> Result<Vec<Moved>> {
    if raws.is_empty() {
        return Ok(Vec::new());
    }
    Ok(many::all_in(op, raws, resource, threads)?.into_iter().map(Moved::Contiguous).collect())
}
