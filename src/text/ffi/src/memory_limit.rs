//! Runs a function on a thread of its own with a limit on the memory that it may hold. For code that
//! has no limit itself: minijinja's string operators.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Dropping a list inside a list inside a list ... recurses, and a rendering has instructions for
/// about a million of them; 1 kB for each is several times what they take. Address space only.
const STACK: usize = 1 << 30;

const UNLIMITED: isize = isize::MAX;

thread_local! {
    /// Bytes that this thread may still allocate, or UNLIMITED.
    static LEFT: Cell<isize> = const { Cell::new(UNLIMITED) };
    /// Whom to tell when there are none. Valid while LEFT is limited.
    static RUN: Cell<*const Run> = const { Cell::new(std::ptr::null()) };
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Running,
    Done,
    Exceeded,
}

struct Run {
    state: Mutex<State>,
    changed: Condvar,
}

impl Run {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates nothing.
    fn set(&self, state: State) {
        *self.lock() = state;
        self.changed.notify_one();
    }

    fn wait(&self) -> State {
        let mut state = self.lock();
        while *state == State::Running {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        *state
    }
}

/// The system's allocator, counting on threads that have a limit.
pub struct CountingAllocator;

impl CountingAllocator {
    fn take(bytes: usize) {
        let left = LEFT.get();
        if left == UNLIMITED {
            return;
        }
        if bytes as isize > left {
            Self::give_up();
        }
        LEFT.set(left - bytes as isize);
    }

    fn give(bytes: usize) {
        let left = LEFT.get();
        if left != UNLIMITED {
            LEFT.set(left.saturating_add(bytes as isize).min(UNLIMITED - 1));
        }
    }

    /// An allocator may neither fail without ending the process nor unwind, so the thread stays
    /// here, with what it holds, for good.
    fn give_up() -> ! {
        LEFT.set(UNLIMITED);
        // SAFETY: the thread's own function holds the Arc that this points into.
        unsafe { (*RUN.get()).set(State::Exceeded) };
        loop {
            unsafe { libc::pause() };
        }
    }
}

// SAFETY: System's own, with counting around it that does not allocate.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::take(layout.size());
        System.alloc(layout)
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::take(layout.size());
        System.alloc_zeroed(layout)
    }
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::take(size);
        let moved = System.realloc(memory, layout, size);
        Self::give(layout.size());
        moved
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        System.dealloc(memory, layout);
        Self::give(layout.size());
    }
}

pub enum Failure {
    /// The limit was exceeded: a thread and up to `limit` bytes are lost.
    Exceeded,
    /// The function panicked, or there is no thread for it.
    Internal,
}

/// `run` must own all that it uses: its thread may outlive the call.
pub fn run_limited<T: Send + 'static>(
    limit: usize,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let shared = Arc::new(Run { state: Mutex::new(State::Running), changed: Condvar::new() });
    let result = Arc::new(Mutex::new(None));
    let (of_thread, its_result) = (Arc::clone(&shared), Arc::clone(&result));
    let body = move || {
        RUN.set(Arc::as_ptr(&of_thread));
        LEFT.set(limit.min(UNLIMITED as usize - 1) as isize);
        let value = catch_unwind(AssertUnwindSafe(run)).ok();
        LEFT.set(UNLIMITED);
        *its_result.lock().unwrap_or_else(PoisonError::into_inner) = value;
        of_thread.set(State::Done);
    };
    let builder = std::thread::Builder::new().stack_size(STACK);
    builder.spawn(body).map_err(|_| Failure::Internal)?;
    if shared.wait() == State::Exceeded {
        return Err(Failure::Exceeded);
    }
    let value = result.lock().unwrap_or_else(PoisonError::into_inner).take();
    value.ok_or(Failure::Internal)
}
