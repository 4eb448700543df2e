//! Freed memory that the allocator keeps, and when it is returned to the system.
//!
//! glibc's allocator keeps freed memory for reuse, and no budget counts it: blocks of up to 32 MiB may stay resident,
//! and free memory between live objects stays forever. So code that frees memory of a budget reports it here before
//! the budget counts it as free.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex};

use crate::{Reservation, Result, Trim, host_budget, sync::lock_std};

/// How many freed bytes may go uncounted before they are returned to the system, which takes a millisecond.
const MAX_UNCOUNTED: usize = 16 << 20;
/// How many freed bytes may stay counted: a sixteenth of the budget's limit, but at least this and at most
/// `MAX_COUNTED`.
const MIN_COUNTED: u64 = 16 << 20;
const MAX_COUNTED: u64 = 1 << 30;
/// How many reservations are kept at most, whatever their size.
const MAX_RESERVATIONS: usize = 4_096;

/// Whether the allocator may keep freed memory.
const KEEPS_FREED: bool = cfg!(all(target_os = "linux", target_env = "gnu", not(miri)));

/// Notes that a block was freed while its budget still counts it. Every 16 MiB, the allocator's free memory is returned
/// to the system. Threads that free so much meanwhile wait for that, so that no more than 16 MiB stays uncounted.
pub(crate) fn note_freed(len_bytes: usize) {
    // Relaxed: it guards no other memory.
    static FREED: AtomicUsize = AtomicUsize::new(0); // bytes, since memory was last returned to the system
    static TRIMMING: Mutex<()> = Mutex::new(());

    if FREED.fetch_add(len_bytes, Relaxed).saturating_add(len_bytes) < MAX_UNCOUNTED {
        return;
    }
    let _one_at_a_time = lock_std(&TRIMMING);
    let freed = FREED.load(Relaxed);
    if freed >= MAX_UNCOUNTED {
        trim_allocator();
        FREED.fetch_sub(freed, Relaxed); // what was freed meanwhile still counts
    }
}

/// Returns the allocator's free memory to the system.
#[cold]
fn trim_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    {
        // SAFETY: the function may be called at any time, from any thread; it changes no byte that is in use.
        let _ = unsafe { libc::malloc_trim(0) };
    }
}

/// A reservation in [`host_budget`] for memory from the global allocator, such as the planes of a decoder. Drop it
/// after that memory is freed.
///
/// The allocator may keep freed memory, so the budget counts it as used until it is returned to the system: at the
/// latest before a reservation would be refused.
///
/// # Examples
/// ```
/// use pagelock_memory::{ByteSize, HeapReservation, host_budget};
///
/// let reserved = HeapReservation::new(8 << 20)?;
/// let pixels = vec![0_u8; 8 << 20];
/// assert!(host_budget().used() >= ByteSize::mib(8));
/// drop(pixels);
/// drop(reserved);
/// # Ok::<(), pagelock_memory::Error>(())
/// ```
#[derive(Debug)]
pub struct HeapReservation {
    reserved: Option<Reservation>, // none only while it drops
}

impl HeapReservation {
    /// Reserves `len_bytes` bytes.
    ///
    /// # Errors
    /// [`Error::OverBudget`](crate::Error::OverBudget), as [`Budget::reserve`](crate::Budget::reserve).
    ///
    /// # Examples
    /// See [`HeapReservation`].
    pub fn new(len_bytes: u64) -> Result<Self> {
        Ok(Self { reserved: Some(host_budget().reserve(len_bytes)?) })
    }

    /// How many bytes it holds.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(pagelock_memory::HeapReservation::new(100)?.len_bytes(), 100);
    /// # Ok::<(), pagelock_memory::Error>(())
    /// ```
    pub fn len_bytes(&self) -> u64 {
        self.reserved.as_ref().map_or(0, Reservation::len_bytes)
    }
}

impl Drop for HeapReservation {
    fn drop(&mut self) {
        if let Some(reserved) = self.reserved.take().filter(|_| KEEPS_FREED) {
            FREED_HEAP.add(reserved);
        }
    }
}

/// Reservations for freed memory that the allocator may keep.
struct FreedHeap {
    freed: Mutex<Freed>,
    trimming: Mutex<()>, // held while bytes are returned: a reservation that lacks them waits
}

#[derive(Default)]
struct Freed {
    reservations: Vec<Reservation>,
    len_bytes: u64,
}

static FREED_HEAP: LazyLock<Arc<FreedHeap>> = LazyLock::new(|| {
    let heap = Arc::new(FreedHeap { freed: Mutex::default(), trimming: Mutex::default() });
    let pool: Arc<dyn Trim> = heap.clone();
    host_budget().add_pool(Arc::downgrade(&pool));
    heap
});

impl FreedHeap {
    fn add(&self, reserved: Reservation) {
        let max_counted = (host_budget().limit().0 / 16).clamp(MIN_COUNTED, MAX_COUNTED);
        let mut freed = lock_std(&self.freed);
        freed.len_bytes += reserved.len_bytes();
        freed.reservations.push(reserved);
        let is_full = freed.len_bytes > max_counted || freed.reservations.len() >= MAX_RESERVATIONS;
        drop(freed);
        if is_full || host_budget().has_waiters() {
            self.trim();
        }
    }
}

impl Trim for FreedHeap {
    fn trim(&self) -> usize {
        let _one_at_a_time = lock_std(&self.trimming);
        let freed = std::mem::take(&mut *lock_std(&self.freed));
        if freed.len_bytes > 0 {
            trim_allocator(); // before the budget counts these bytes as free
        }
        drop(freed.reservations);
        freed.len_bytes as usize
    }
}
